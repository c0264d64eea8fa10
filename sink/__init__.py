"""How a batch gets into Postgres: what Spark calls in tasks, in the commit worker and on the driver."""
