"""Servers of replicated machines, and clients, blocking and asyncio."""
