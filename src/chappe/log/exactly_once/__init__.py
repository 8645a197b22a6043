"""Exactly-once writes of Spark queries: staged, decided by one file, and appended. No I/O."""
