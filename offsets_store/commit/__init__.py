"""How do rows and offsets become durable together?"""
