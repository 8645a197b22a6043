"""The only sockets, files, clocks and threads."""
