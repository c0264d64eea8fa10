"""
The command ``pgonce watch``: one screen that shows what all queries are doing, for as long as it is left open.

Begin with :mod:`.screen`. Its thread (:mod:`.poller`) reads the ledger; what a key does (:mod:`.view`) and what stands
on the screen (:mod:`.query_list`, :mod:`.query_page`) are pure functions.
"""
