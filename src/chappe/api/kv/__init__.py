"""Data stores as their users hold them."""
