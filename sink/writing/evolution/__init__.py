"""What if the table lacks columns of the rows, or has some that are too narrow?"""
