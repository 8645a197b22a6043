"""The mesh in seeded worlds."""
