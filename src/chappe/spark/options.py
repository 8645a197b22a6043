"""The options of ``format("chappe")``: read, checked and explained in one place.

Names are Kafka's where the meaning is the same. Spark hands options over case-insensitively, as text.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import Filter
from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT
from chappe.errors import UsageError
from chappe.spark.offsets import EARLIEST, LATEST, Offsets, sort_offsets

NAMES: Final = (
    "stores",
    "tower",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "maxRecordsPerTrigger",
    "failOnDataLoss",
    "minPartitions",
)
# Kafka's name -> ours, where a user of Kafka would look for it
_ELSEWHERE: Final = {
    "maxoffsetspertrigger": "maxRecordsPerTrigger",
    "kafka.bootstrap.servers": "stores",
    "assign": "subscribe",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    ``stores`` are query endpoints; without any, ``tower`` names whom to ask for them. ``starting`` and ``ending``
    are "earliest", "latest" or offsets; None leaves the default of batch or stream.
    """

    stores: tuple[str, ...]
    tower: str | None
    filters: tuple[Filter, ...]
    starting: str | Offsets | None
    ending: str | Offsets | None
    max_records: int | None
    fail_on_data_loss: bool
    tasks: int | None

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """Raises UsageError; its text names the option."""
        options = {name.lower(): value for name, value in given.items()}
        _refuse_unknown(options)
        stores = _stores(options.get("stores"))
        tower = options.get("tower")
        if stores and tower:
            raise UsageError("give `stores` or `tower`, not both")
        if not stores and not tower:
            tower = f"{TOWER_HOST}:{TOWER_SUB_PORT}"
        filters = _filters(options.get("subscribe"), options.get("subscribepattern"))
        starting = _offsets(options, "startingOffsets", filters)
        ending = _offsets(options, "endingOffsets", filters)
        if ending == EARLIEST:
            raise UsageError('`endingOffsets` cannot be "earliest": nothing would be read')
        return cls(
            stores,
            tower,
            filters,
            starting,
            ending,
            _positive(options, "maxRecordsPerTrigger"),
            _flag(options, "failOnDataLoss"),
            _positive(options, "minPartitions"),
        )


def _refuse_unknown(options: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in NAMES}
    for name in options:
        if name in known:
            continue
        close = _ELSEWHERE.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
        hint = f"did you mean `{known.get(close, close)}`?" if close else f"there are {', '.join(NAMES)}"
        raise UsageError(f"unknown option `{name}` of format chappe: {hint}")


def _stores(text: str | None) -> tuple[str, ...]:
    found = tuple(part.strip() for part in (text or "").split(",") if part.strip())
    for each in found:
        host, _, port = each.removeprefix("tcp://").rpartition(":")
        if not each.startswith("tcp://") or not host or not port.isdigit():
            raise UsageError(f"`stores` wants tcp://host:port,... and not {each!r}")
    return tuple(dict.fromkeys(found))


def _filters(topics: str | None, pattern: str | None) -> tuple[Filter, ...]:
    if (topics is None) == (pattern is None):
        raise UsageError(
            'say what to read with `subscribe` ("topic,other") or `subscribePattern` ("prefix*"), not both'
        )
    if pattern is not None:
        if not pattern.endswith("*"):
            raise UsageError(
                f"`subscribePattern` is a prefix with * at its end, not {pattern!r}; for a topic: `subscribe`"
            )
        return (Filter.parse(pattern),)
    names = [part.strip() for part in (topics or "").split(",") if part.strip()]
    if not names:
        raise UsageError("`subscribe` names no topic")
    if any(name.endswith("*") for name in names):
        raise UsageError("`subscribe` takes names of topics; for a prefix use `subscribePattern`")
    return tuple(Filter.parse(name) for name in dict.fromkeys(names))


def _offsets(options: Mapping[str, str], name: str, filters: tuple[Filter, ...]) -> str | Offsets | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if text.strip().lower() in (EARLIEST, LATEST):
        return text.strip().lower()
    try:
        parsed = json.loads(text)
        found = {str(t): {str(p): _offset(n) for p, n in ps.items()} for t, ps in parsed.items()}
    except (ValueError, AttributeError, RecursionError):
        wanted = '"earliest", "latest" or JSON such as {"topic": {"partition": 42}} (-2: earliest, -1: latest)'
        raise UsageError(f"`{name}` is {wanted}, not {text[:200]!r}") from None
    for topic in found:
        if not any(each.matches(topic) for each in filters):
            raise UsageError(f"`{name}` names topic {topic!r}, which is not subscribed to")
    return sort_offsets(found)


def _offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -2 <= value < 1 << 63:
        raise ValueError(value)
    return value


def _positive(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name.lower())
    if text is None:
        return None
    if not text.strip().isdecimal() or not 0 < int(text) < 1 << 63:
        raise UsageError(f"`{name}` is a number of at least 1, not {text!r}")
    return int(text)


def _flag(options: Mapping[str, str], name: str) -> bool:
    text = options.get(name.lower(), "true").strip().lower()
    if text not in ("true", "false"):
        raise UsageError(f"`{name}` is true or false, not {text!r}")
    return text == "true"
