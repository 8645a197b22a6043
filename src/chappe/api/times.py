"""Moments as users give them, in the microseconds since 1970 UTC that records carry."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from operator import index
from typing import Final

from chappe.errors import UsageError

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_micros(moment: int | datetime) -> int:
    """The microseconds since 1970 UTC, exactly.

    Raises:
        UsageError: It is neither a whole number nor a datetime with a time zone.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError("a time needs a time zone: datetime.now(timezone.utc)")
        return (moment - EPOCH) // timedelta(microseconds=1)
    try:
        return index(moment)
    except TypeError:
        raise UsageError(f"a time is a datetime or whole microseconds since 1970, not {moment!r}") from None
