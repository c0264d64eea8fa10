"""
How long a test waits for Spark: as long as a build machine may take that is twenty times slower than an idle one.

Runs in: pytest, and in the drivers that tests start. Invariant: it bounds waits that end as soon as all is well: its
length costs nothing then. If nothing may come, or it must come soon, a test names seconds of its own.
"""

PATIENCE_SECONDS = 600.0
