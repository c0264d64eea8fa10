"""
The ledger of published batches and offsets, which tells where each query stopped, and Spark's checkpoint to compare it
with.

Runs on the driver, in Spark's workers and on the command line. Invariant: this package never imports ``sink``, and
only its listener needs pyspark.
"""

from .log_lines import keep_lines_whole, write_to_stderr

keep_lines_whole()
write_to_stderr()
