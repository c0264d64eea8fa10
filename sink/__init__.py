"""The way of a batch into Postgres: what Spark calls, in tasks, in the commit worker and on the driver."""
