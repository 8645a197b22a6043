"""What maintainers run: a release, and a wheel tried in new environments."""
