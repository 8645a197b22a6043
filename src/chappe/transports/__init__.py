"""The only sockets: ZeroMQ's for the log, TCP and TLS for the mesh."""
