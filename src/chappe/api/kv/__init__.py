"""Data stores and shared maps."""
