"""Kafka: its brokers, and the settings for logging in."""
