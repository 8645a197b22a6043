"""Worlds of the log that users' objects play, on the ground of ``chappe.testing``."""
