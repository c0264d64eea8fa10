"""Which rows are stored already, where each carries its position in Kafka?"""
