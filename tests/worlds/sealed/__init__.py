"""Worlds with groups that change, for which topics are sealed."""
