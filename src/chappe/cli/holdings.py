"""What the stores hold, asked of all that a tower introduces: used by ``topics`` and ``consume --until-end``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from chappe.cli.console import warn
from chappe.data.topic import Filter, similar
from chappe.errors import ChappeError, TimedOut, UnknownTopic

DISCOVER_S: Final = 2.0
ANSWER_S: Final = 5.0
HURRY_S: Final = 1.0  # for what is nice to know


@dataclass(slots=True)
class Holding:
    """One partition, as all its stores together hold it."""

    topic: str
    partition: str
    first: int
    next: int
    bytes: int
    oldest: int
    newest: int
    stores: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Holdings:
    """All partitions, by topic and address, and the stores that answered."""

    partitions: list[Holding]
    stores: list[str]
    scrubbed: dict[str, int] = field(default_factory=dict)  # store: when it had last read all that it keeps; 0: never

    @property
    def stores_text(self) -> str:
        """The beginning of a sentence about what no store has."""
        return "the store does not have" if len(self.stores) == 1 else f"none of {len(self.stores)} stores has"


def look(tower: str, filters: Sequence[Filter], listen: str) -> Holdings:
    """Ask every store what it has of the topics that ``filters`` select; none selects all.

    Raises:
        TimedOut: No store could be found, or none answered.
    """
    from chappe.api.log.discovery import discover
    from chappe.cli.presence import answers
    from chappe.transports.queries import StoreClient

    stores = discover(tower, timeout=DISCOVER_S, listen=listen)
    if not stores:
        if not answers(tower):
            raise TimedOut(f"no tower answers at {tower}; start one with: chappe up")
        raise TimedOut(f"the tower at {tower} knows no store; start one with: chappe store DIRECTORY")
    found: dict[tuple[str, str], Holding] = {}
    answered = []
    scrubbed: dict[str, int] = {}
    for store in stores:
        client = StoreClient(store.endpoint, ANSWER_S)
        try:
            infos, _ = client.heads(_common_prefix(filters))
        except ChappeError as error:
            warn(str(error))
            continue
        finally:
            client.close()
        answered.append(store.store_id)
        scrubbed[store.store_id] = client.scrubbed_us
        for info in infos:
            if filters and not any(each.matches(info.topic) for each in filters):
                continue
            seen = found.setdefault(
                (info.topic, info.partition),
                Holding(info.topic, info.partition, info.first, 0, 0, info.timestamp_min, info.timestamp_max),
            )
            seen.first = min(seen.first, info.first)
            seen.next = max(seen.next, info.next)
            seen.bytes = max(seen.bytes, info.bytes)
            seen.oldest = min(seen.oldest, info.timestamp_min)
            seen.newest = max(seen.newest, info.timestamp_max)
            seen.stores.append(store.store_id)
    if not answered:
        raise TimedOut(f"none of the {len(stores)} stores that the tower at {tower} knows answered")
    return Holdings([found[key] for key in sorted(found)], answered, scrubbed)


def unknown(known: Holdings, name: str, tower: str, listen: str) -> UnknownTopic:
    """What to raise for a topic that no store has: it tells which ones are nearly of that name."""
    names = sorted({each.topic for each in look(tower, [], listen).partitions})
    return UnknownTopic(f"{known.stores_text} a topic {name!r}{_instead(name, names)}")


def none_matches(patterns: Sequence[Filter], tower: str, listen: str) -> str | None:
    """What to say if topics are there and none is selected; None if there are no topics at all."""
    names = sorted({each.topic for each in look(tower, [], listen).partitions})
    if not names:
        return None
    shown = " or ".join(repr(str(each)) for each in patterns)
    there = "the only topic does not match" if len(names) == 1 else f"none of the {len(names):,} topics matches"
    return f"{there} {shown}{_instead(patterns[0].name, names)}"


def _instead(name: str, names: Sequence[str]) -> str:
    near = similar(name, names)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else "; `chappe topics` lists all"


def new_beside(topic: str, partition: str, tower: str, listen: str) -> list[str]:
    """Topics of nearly the name of ``topic``, if nobody but ``partition`` has written to it; of one store, in a hurry.

    Whatever goes wrong is an empty answer: somebody else tells of it.
    """
    from chappe.api.log.discovery import discover
    from chappe.transports.queries import StoreClient

    try:
        for store in discover(tower, HURRY_S, listen=listen, settle_s=0.0)[:1]:
            client = StoreClient(store.endpoint, HURRY_S)
            try:
                infos, _ = client.heads()
            finally:
                client.close()
            if all(info.topic != topic or info.partition == partition for info in infos):
                return similar(topic, [info.topic for info in infos])
    except (ChappeError, OSError):
        pass
    return []


def _common_prefix(filters: Sequence[Filter]) -> str:
    """The longest text with which every selected topic starts."""
    names = [each.name for each in filters]
    if not names:
        return ""
    low, high = min(names), max(names)  # what these two share, all between them share
    same = 0
    while same < len(low) and low[same] == high[same]:
        same += 1
    return low[:same]
