"""How do changes get into the table: writes and deletes, and only what is newer?"""
