"""Moments of users, in the microseconds since 1970 UTC that records carry."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import index
from typing import Final

from chappe.errors import UsageError

logger = logging.getLogger(__name__)

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


_LOOKS_LIKE: Final = {"seconds": range(10**9, 10**10), "milliseconds": range(10**12, 10**13)}  # since 2001
_LAST: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)
_FIRST: Final = (datetime.min.replace(tzinfo=UTC) - EPOCH) // timedelta(microseconds=1)


def as_micros(moment: int | datetime) -> int:
    """Return the microseconds since 1970 UTC, exactly.

    Raises:
        UsageError: It is neither a whole number nor a datetime with a time zone, or not of the years 1 to 9999.
    """
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise UsageError("a time needs a time zone: datetime.now(timezone.utc)")
        return (moment - EPOCH) // timedelta(microseconds=1)
    try:
        micros = index(moment)
    except TypeError:
        raise UsageError(
            f"a time is a datetime or whole microseconds since 1970 (time.time_ns() // 1000), not {moment!r}"
        ) from None
    if not _FIRST <= micros <= _LAST:
        raise UsageError(
            f"{micros} microseconds since 1970 are not within the years 1 to 9999: a time is given in microseconds, so "
            "divide nanoseconds by 1000"
        )
    for unit, times in _LOOKS_LIKE.items():
        if micros in times:
            _warn(unit)
    return micros


@cache
def _warn(unit: str) -> None:
    """Warn once of times so early that they are legal, and hardly ever meant."""
    logger.warning("a time early in 1970 was given, which would be one of today in %s: a time is microseconds", unit)
