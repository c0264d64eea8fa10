"""What does Spark's checkpoint say, and how is it written?"""
