"""How does a Kafka consumer group come to stand where Postgres stands, so that tools that watch groups see a query?"""
