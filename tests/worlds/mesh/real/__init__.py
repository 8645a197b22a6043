"""Worlds of the mesh that users' objects play, on the ground of ``chappe.testing``."""
