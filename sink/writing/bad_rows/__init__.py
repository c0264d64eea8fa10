"""Which rows cannot be written for their own values, and where do they go instead?"""
