"""What queries of Spark write exactly once: staged, decided by one file, and appended. No I/O."""
