"""Ask a server whether the promises of pgonce would hold there."""
