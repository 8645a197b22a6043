"""Worlds of chains whose members are stores: ordered topics with many writers, queries that write exactly once."""
