"""What a box of bounded size does with what comes when it is full."""

from __future__ import annotations

from enum import StrEnum


class Policy(StrEnum):
    """The four policies; ``Policy("block")`` reads the name that users write.

    BLOCK: whoever fills the box looks at ``full`` and waits while it is True. What is on its way already is still
    taken, up to twice the bounds; what would go beyond is dropped and counted.
    DROP_OLDEST: the oldest make room. DROP_NEWEST: what comes is dropped. Both count.
    DISCONNECT: what comes is dropped and counted, and ``overflowed`` tells the owner to end the connection (or the
    subscription).
    """

    BLOCK = "block"
    DROP_OLDEST = "drop_oldest"
    DROP_NEWEST = "drop_newest"
    DISCONNECT = "disconnect"
