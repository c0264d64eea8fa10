"""How do the rows of one batch get into several tables?"""
