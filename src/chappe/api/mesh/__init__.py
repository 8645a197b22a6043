"""The mesh as its users hold it."""
