"""Data stores as users run them, on hosts that fail."""
