"""Which bytes do rows become? From Arrow to the body of a binary COPY."""
