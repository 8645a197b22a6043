"""Messages of the mesh as Arrow columns, decoded many at a time.

shapes    which type of Arrow the arguments of an event become, and one value after the other into these
wire      the same from the bytes of many events at once, by numpy, without an object for each value
events    from messages to a record batch for each event and types of its arguments
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from chappe.arrow import pyarrow
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.columns.events import EventColumns

    Reader: TypeAlias = Callable[[Sequence[bytes], Sequence[bytes]], EventColumns]


def reader() -> Reader:
    """Return the function that makes columns of topics and payloads; raises UsageError without Arrow or numpy."""
    pyarrow()
    try:
        from chappe.columns.events import read
    except ImportError:
        raise UsageError("numpy is not installed; run: pip install 'chappe[arrow]'") from None
    return read
