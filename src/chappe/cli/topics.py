"""``chappe topics``: what the stores hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, takewhile
from typing import Annotated, Any, Final

from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import answers, hear_warnings, warn
from chappe.cli.units import human_bytes, iso_time, readable_name
from chappe.data.topic import Filter, similar
from chappe.errors import ChappeError, TimedOut, UnknownTopic

DISCOVER_S: Final = 2.0
ANSWER_S: Final = 5.0
HURRY_S: Final = 1.0  # for what is nice to know
PIPE_WIDTH: Final = 240  # of the table where no terminal says how wide it is


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


def look(tower: str, filters: Sequence[Filter], listen: str) -> Holdings:
    """Ask every store what it has of the topics that ``filters`` select; none selects all.

    Raises:
        TimedOut: No store could be found, or none answered.
    """
    from chappe.api.log.discovery import discover
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


def check_known(held: Holdings, filters: Sequence[Filter], tower: str, listen: str) -> None:
    """Raise UnknownTopic for a topic that no store has; it tells which ones are nearly of that name."""
    for each in filters:
        if not each.prefix and not any(info.topic == each.name for info in held.partitions):
            names = sorted({each.topic for each in look(tower, [], listen).partitions})
            who = "the store does not have" if len(held.stores) == 1 else f"none of {len(held.stores)} stores has"
            raise UnknownTopic(f"{who} a topic {each.name!r}{_instead(each.name, names)}")


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
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(min(names), max(names), strict=False))
    return "".join(char for char, _ in shared)  # what these two share, all between them share


def topics(
    names: Annotated[list[str] | None, Argument(metavar="TOPIC", help="Topics; `name*` is a prefix.")] = None,
    partitions: Annotated[bool, Option("--partitions", help="One line for each partition.")] = False,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """List topics: partitions, records, heads, sizes, times, and the stores that hold them."""
    hear_warnings(tower)
    filters = [Filter.parse(name) for name in names or ()]
    held = look(tower, filters, listen)
    check_known(held, filters, tower, listen)
    by = (lambda each: (each.topic, each.partition)) if partitions else (lambda each: each.topic)
    rows = [_facts(list(group), partitions) for _, group in groupby(held.partitions, by)]
    if not rows and (others := none_matches(filters, tower, listen) if filters else None):
        warn(others)
    elif as_json:
        for row in rows:
            print(json.dumps(row))
    elif rows:
        _print_table(rows, partitions)
        for store, at in sorted(held.scrubbed.items()):
            when = f"at {iso_time(at)[:19]}Z" if at else "not yet"
            print(f"store {store[:8]} last had all it keeps read and checked: {when}")
    else:
        print("no topics yet; make one with: echo hello | chappe produce greetings")


def _facts(held: Sequence[Holding], by_partition: bool) -> dict[str, Any]:
    """A topic, or a partition of it, for a machine."""
    kept = [each for each in held if each.next > each.first]
    return {
        "topic": held[0].topic,
        **({"partition": held[0].partition} if by_partition else {"partitions": len(held)}),
        "records": sum(each.next - each.first for each in held),
        "head": max(each.next for each in held) - 1,
        "bytes": sum(each.bytes for each in held),
        "oldest": iso_time(min(each.oldest for each in kept)) if kept else None,
        "newest": iso_time(max(each.newest for each in kept)) if kept else None,
        "stores": sorted({store for each in held for store in each.stores}),
    }


def _print_table(rows: Sequence[dict[str, Any]], by_partition: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    from chappe.cli.screen import wide_console

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("topic", overflow="fold")
    table.add_column("partition" if by_partition else "partitions", justify="left" if by_partition else "right")
    for name in ("records", "head", "size"):
        table.add_column(name, justify="right")
    for name in ("oldest", "newest", "stores"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            escape(readable_name(row["topic"])),
            escape(row["partition"]) if by_partition else f"{row['partitions']:,}",
            f"{row['records']:,}",
            f"{row['head']:,}",
            human_bytes(row["bytes"]),
            *("" if row[name] is None else row[name][:19] + "Z" for name in ("oldest", "newest")),
            ", ".join(sorted(each[:8] for each in row["stores"])),
        )
    wide_console(PIPE_WIDTH).print(table)
