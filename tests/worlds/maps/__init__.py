"""Worlds of shared maps: a pair of servers, their witness, clients."""
