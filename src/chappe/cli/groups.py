"""``chappe groups``: who shares the reading of topics, and how far each group is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.cli import completing, options
from chappe.cli.console import hear_warnings, say
from chappe.cli.listing import print_listing
from chappe.cli.topics import looking
from chappe.cli.units import human_age, human_bytes, parse_start
from chappe.cli.watching import watchable
from chappe.data.markup import many
from chappe.data.topic import Filter
from chappe.errors import UsageError

if TYPE_CHECKING:
    from chappe.reading.groups import ConsumerGroups, GroupStatus
    from chappe.reading.offsets import Key, KnownPartition
    from chappe.reading.view import StoresView

app = typer.Typer(name="groups", help="Show consumer groups with their members and positions, or set positions.")

Group: TypeAlias = Annotated[
    str, Argument(metavar="GROUP", help="Name of the group.", autocompletion=completing.GROUPS)
]
HEADS: Final = ("topic", "partition", "member", "position", "end", "lag", "bytes", "behind", "committed")


@app.callback(invoke_without_command=True)
@watchable
@options.with_groups
def groups(context: typer.Context, reach: options.Reach, as_json: options.Json = False) -> None:
    """List groups: members, partitions, and how many records each has not read."""
    if context.invoked_subcommand is not None:
        return
    with _groups(reach) as (found, _):
        listed = [found.status(name, ages=False) for name in found.names()]
    if not listed and not as_json:
        print("no groups yet; a program makes one with Consumer(TOPIC, group=NAME), or `chappe consume --group NAME`")
        return
    facts = [
        {"group": each.name, "members": len(each.members), "partitions": len(each.positions), "lag": _lag(each)}
        for each in listed
    ]
    rows = [[f"{each[head]:,}" if head != "group" else str(each[head]) for head in each] for each in facts]
    heads = ("group", "members", "partitions", "lag")
    print_listing(as_json, {"groups": facts}, heads, rows, right=heads[1:])


@app.command()
@watchable
@options.with_groups
def show(group: Group, reach: options.Reach, as_json: options.Json = False) -> None:
    """Show the members of a group, and the reader, position and lag of each partition."""
    with _groups(reach) as (found, _):
        status = found.status(group)
    members = [
        {"member": each.member, "name": each.name, "topics": [topic.decode(errors="replace") for topic in each.topics]}
        for each in status.members
    ]
    positions = [asdict(each) for each in status.positions]
    for each in positions:
        each["committed"] = iso_time(each.pop("committed_us")) if each["offset"] >= 0 else None
    facts: dict[str, Any] = {"group": group, "members": members, "partitions": positions, "lag": _lag(status)}
    names = {each.member: each.name for each in status.members if each.member == each.life}
    rows = [_row(each, names) for each in positions]
    print_listing(as_json, facts, HEADS, rows, right=HEADS[3:7], ids=HEADS[1:3], spare=("committed", "bytes", "end"))
    if not as_json:
        print(f"{many(len(members), 'member')}; {many(_lag(status), 'record')} not read")


@app.command()
@options.with_groups
def reset(
    group: Group,
    reach: options.Reach,
    to: Annotated[str, Option(metavar="WHERE", help="earliest, latest, an offset, an age (10m), or a time.")],
    topic: Annotated[
        list[str] | None,
        Option(
            metavar="TOPIC",
            help="Only partitions of these topics; `name*` is a prefix.",
            autocompletion=completing.TOPICS,
        ),
    ] = None,
    partition: Annotated[
        str | None,
        Option(metavar="ID", help="Only partitions whose id begins so.", autocompletion=completing.PARTITIONS),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Set the positions of a group without members, in all partitions or some."""
    where = parse_start(to)
    if where == "last-value":
        raise UsageError("a group goes on from a position: give earliest, latest, an offset, an age or a time")
    filters = [Filter.parse(each) for each in topic or ()]
    with _groups(reach) as (found, view):

        def at(key: Key, known: KnownPartition) -> int | None:
            if filters and not any(each.matches(key[0]) for each in filters):
                return None
            return None if partition and not key[1].startswith(partition) else _place(view, where, key, known)

        moved = found.reset(group, at)
    facts = [{"topic": key[0], "partition": key[1], "before": old, "after": new} for key, (old, new) in moved.items()]
    rows = [[*key, _offset(old), _offset(new)] for key, (old, new) in moved.items()]
    heads = ("topic", "partition", "before", "after")
    print_listing(as_json, {"group": group, "positions": facts}, heads, rows, right=heads[2:], ids=heads[1:2])


@app.command()
@options.with_groups
def delete(group: Group, reach: options.Reach) -> None:
    """Forget a group without members, with all its positions, at all stores."""
    with _groups(reach) as (found, _):
        count = found.delete(group)
    say(f"group {group} is deleted, with {many(count, 'position')}")


@contextmanager
def _groups(reach: options.Reach) -> Iterator[tuple[ConsumerGroups, StoresView]]:
    from chappe.reading.groups import ConsumerGroups

    hear_warnings(reach.tower)
    with looking(reach, []) as (_, view):
        yield ConsumerGroups(view), view


def _place(view: StoresView, where: str | int | datetime, key: Key, known: KnownPartition) -> int:
    if where == "earliest":
        return known.first
    if where == "latest":
        return known.next
    if isinstance(where, datetime):
        from chappe.reading.groups import offset_at

        return offset_at(view, key, known, where)
    assert isinstance(where, int)
    return min(max(where, known.first), known.next)


def _lag(status: GroupStatus) -> int:
    return sum(each.lag for each in status.positions)


def _offset(offset: int) -> str:
    return "none" if offset < 0 else f"{offset:,}"


def _row(position: dict[str, Any], names: dict[str, str]) -> list[str]:
    member, behind, committed = position["member"], position["lag_s"], position["committed"]
    return [
        position["topic"],
        position["partition"],
        names.get(member) or member,
        _offset(position["offset"]),
        f"{position['end']:,}",
        f"{position['lag']:,}",
        human_bytes(position["lag_bytes"]),
        "" if behind is None else human_age(round(behind, 1)),
        "" if committed is None else committed[:19] + "Z",
    ]
