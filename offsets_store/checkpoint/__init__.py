"""Read and repair Spark's checkpoint."""
