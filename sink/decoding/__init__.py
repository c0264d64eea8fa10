"""Decode the records of a topic by the types of the table's columns; begin with ``kafka_frame.py``."""

from .kafka_frame import reader_of_records

__all__ = ["reader_of_records"]
