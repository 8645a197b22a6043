"""The only files: the log on disk, journals, positions, and the backends of data stores."""
