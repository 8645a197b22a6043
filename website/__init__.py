"""The documentation as a site, and its pictures."""
