"""Kafka: its brokers, consumer groups, and the settings for logging in."""
