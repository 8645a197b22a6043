"""The classes that users hold: blocking and asyncio faces over the same nodes."""
