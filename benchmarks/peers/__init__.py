"""Clients of other systems; they run under ``--peer-python`` and import nothing of chappe."""
