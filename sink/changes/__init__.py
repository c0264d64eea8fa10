"""What does each row of a change feed say is to be done?"""
