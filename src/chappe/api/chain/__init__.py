"""What users of chains hold: servers of their machines, and clients, blocking and asyncio."""
