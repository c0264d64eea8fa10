"""A process on the driver that takes rows while tasks run, and holds the batch's open COPY: option ``receiver``."""
