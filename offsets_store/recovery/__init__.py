"""How are a stopped query's checkpoint and the ledger brought to agree again?"""
