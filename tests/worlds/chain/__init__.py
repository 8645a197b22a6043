"""Worlds of chains: servers, clients, and what goes wrong between them."""
