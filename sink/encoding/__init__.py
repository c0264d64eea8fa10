"""From Arrow to the body of a binary COPY."""
