"""Data stores in seeded worlds."""
