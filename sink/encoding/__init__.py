"""Which bytes are the rows? From Arrow to the body of a binary COPY."""
