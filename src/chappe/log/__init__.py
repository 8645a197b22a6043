"""The durable partitioned log (Dafka): pure cores, no I/O."""
