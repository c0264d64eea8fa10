"""What Spark says of its queries while they run."""
