"""``chappe topics``: what the stores hold."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from chappe.cli import options
from chappe.cli.console import hear_warnings, warn

if TYPE_CHECKING:
    from chappe.cli.holdings import Holding


@dataclass(slots=True)
class _Row:
    """One line of the answer: a topic, or a partition of it."""

    topic: str
    partition: str | None = None
    partitions: int = 0
    records: int = 0
    head: int = -1
    bytes: int = 0
    oldest: int | None = None
    newest: int | None = None
    stores: set[str] = field(default_factory=set)

    def add(self, held: Holding) -> None:
        self.partitions += 1
        self.records += held.next - held.first
        self.head = max(self.head, held.next - 1)
        self.bytes += held.bytes
        if held.next > held.first:
            self.oldest = held.oldest if self.oldest is None else min(self.oldest, held.oldest)
            self.newest = held.newest if self.newest is None else max(self.newest, held.newest)
        self.stores.update(held.stores)


def topics(
    names: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Topics; `name*` is a prefix.")] = None,
    partitions: Annotated[bool, typer.Option("--partitions", help="One line for each partition.")] = False,
    tower: options.Tower = options.TOWER,
    listen: options.Listen = options.LISTEN,
    as_json: options.Json = False,
) -> None:
    """List topics: partitions, records, heads, sizes, times, and the stores that hold them."""
    from chappe.cli.holdings import look, none_matches, unknown
    from chappe.data.topic import Filter

    hear_warnings(tower)
    filters = [Filter.parse(name) for name in names or ()]
    held = look(tower, filters, listen)
    for each in filters:
        if not each.prefix and not any(info.topic == each.name for info in held.partitions):
            raise unknown(held, each.name, tower, listen)
    rows = _rows(held.partitions, partitions)
    if not rows and (others := none_matches(filters, tower, listen) if filters else None):
        warn(others)
    elif as_json:
        _print_json(rows)
    elif rows:
        _print_table(rows, partitions)
        _print_scrubbed(held.scrubbed)
    else:
        print("no topics yet; make one with: echo hello | chappe produce greetings")


def _rows(held: Sequence[Holding], by_partition: bool) -> list[_Row]:
    rows: dict[tuple[str, str | None], _Row] = {}
    for each in held:
        partition = each.partition if by_partition else None
        rows.setdefault((each.topic, partition), _Row(each.topic, partition)).add(each)
    return list(rows.values())


def _print_json(rows: Sequence[_Row]) -> None:
    from chappe.cli.units import iso_time

    for row in rows:
        fields = {
            "topic": row.topic,
            **({"partition": row.partition} if row.partition is not None else {"partitions": row.partitions}),
            "records": row.records,
            "head": row.head,
            "bytes": row.bytes,
            "oldest": None if row.oldest is None else iso_time(row.oldest),
            "newest": None if row.newest is None else iso_time(row.newest),
            "stores": sorted(row.stores),
        }
        print(json.dumps(fields, ensure_ascii=True))


def _print_scrubbed(stores: dict[str, int]) -> None:
    """When each store had last read and checked everything that it keeps."""
    from chappe.cli.units import iso_time

    for store, at in sorted(stores.items()):
        when = f"at {iso_time(at)[:19]}Z" if at else "not yet"
        print(f"store {store[:8]} last had all it keeps read and checked: {when}")


def _print_table(rows: Sequence[_Row], by_partition: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from chappe.cli.units import human_bytes, iso_time, readable_name

    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("topic", overflow="fold")
    table.add_column("partition" if by_partition else "partitions", justify="left" if by_partition else "right")
    for name in ("records", "head", "size"):
        table.add_column(name, justify="right")
    for name in ("oldest", "newest", "stores"):
        table.add_column(name)
    for row in rows:
        table.add_row(
            escape(readable_name(row.topic)),
            escape(row.partition) if row.partition is not None else f"{row.partitions:,}",
            f"{row.records:,}",
            f"{row.head:,}",
            human_bytes(row.bytes),
            "" if row.oldest is None else iso_time(row.oldest)[:19] + "Z",
            "" if row.newest is None else iso_time(row.newest)[:19] + "Z",
            ", ".join(sorted(each[:8] for each in row.stores)),
        )
    console = Console()
    if not console.is_terminal:
        console.width = 240  # a pipe has no width to fold at
    console.print(table)
