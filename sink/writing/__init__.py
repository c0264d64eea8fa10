"""How do the rows get into the target table?"""
