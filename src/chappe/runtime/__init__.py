"""Drivers of the cores: the only threads and clocks."""
