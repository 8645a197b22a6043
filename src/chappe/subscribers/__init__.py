"""Readers of the log that keep up: one that only reads, and processes that share the work (the Guide's Black Box).

shares.py           which worker has which records, and up to where all is done: no I/O
work.py             what workers do, and what goes to and from them
workers.py          their processes
function_worker.py  one of them that calls a function
sharded.py          ``ShardedConsumer``: reads and hands out
readers.py          several of these, one for each topic; reader_process.py is the process of one
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from chappe.subscribers.sharded import Progress as Progress
    from chappe.subscribers.sharded import ShardedConsumer as ShardedConsumer
    from chappe.subscribers.shares import stream_of as stream_of

__all__ = ["Progress", "ShardedConsumer", "stream_of"]


def __getattr__(name: str) -> object:
    """Workers import what is beside, and need none of these."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from chappe.subscribers import sharded, shares

    return getattr(shares if name == "stream_of" else sharded, name)
