"""How do rows get into the table by key?"""
