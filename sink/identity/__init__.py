"""Find out which batch it is: from the checkpoint, the running query, or a Spark Connect server."""
