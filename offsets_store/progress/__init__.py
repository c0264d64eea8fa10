"""What did Spark say of its progress, and does the ledger say the same?"""
