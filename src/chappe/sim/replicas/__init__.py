"""Seeded worlds of data stores, a master and its clones; and of the channel that they are built on."""
