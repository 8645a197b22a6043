"""Worlds of ordered topics: a chain whose members are stores, many writers, and consumers."""
