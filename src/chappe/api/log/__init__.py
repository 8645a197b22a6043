"""The log as its users hold it."""
