"""Where does a query stand, and where may a new one go on?"""
