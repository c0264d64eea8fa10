"""How does a table that was filled anew take the place of the living one?"""
