"""The log in seeded worlds."""
