"""
``pgonce serve``: one process with one page, metrics for Prometheus, and checks of health.

=============  =======================================================================================
look           one look at the ledger: what all queries are doing, and what is new since the last look
reader         looks every few seconds in a thread, and keeps what it saw; reads one query when asked
tally          rows a minute of the last hour, and counters that never go backwards
lag            asks Kafka's brokers every half a minute, if it was told where they are
app            which path is answered by what, and how it is served
pages, charts  what the templates show: filter, sort, words for numbers and times, pictures as SVG
metrics        the same as Prometheus's text
health         the same as one line with 200 or 503
security       which Host is answered, that nothing is changed, and the headers of each answer
=============  =======================================================================================

Runs in a process of its own, without Spark. Invariants: it only reads the ledger, but for ``pgonce.measured_lag``;
what it asks Postgres does not depend on how many browsers look on; and no text from outside ever becomes markup.

Needs the packages of ``pgonce[serve]``.
"""
