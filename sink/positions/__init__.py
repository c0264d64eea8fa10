"""Which rows are stored already, if each carries its position in Kafka?"""
