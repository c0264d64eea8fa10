"""The commands of ``pgonce`` that write rows."""
