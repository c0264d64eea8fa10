"""Kafka: its brokers, consumer groups, and how one logs in."""
