"""How answers look: numbers and times in few characters, tables of one line a row, JSON, and signs of work."""
