"""``chappe top``: members, rates, lag and health of a running system, live in a terminal."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from typer import Context

from chappe.cli import mesh, options, units
from chappe.cli.console import hear_warnings, write_out
from chappe.cli.following import UntilInterrupted
from chappe.cli.observed import ObservedSystem, sources
from chappe.data import terminal
from chappe.data.markup import many

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe.dashboard.watching import SourceRunner
    from chappe.observing.snapshot import ObservedMember, ObservedTopic, SystemSnapshot

STEP_S: Final = 0.5  # between two pictures
LOOK_S: Final = 0.1
FIRST_S: Final = 15.0  # a look that is printed once waits so long for sources that do not answer
PIPE_WIDTH: Final = 240  # where no terminal says how wide it is
ROWS_MIN: Final = 3  # of a table, however low the terminal
PROBLEMS_MAX: Final = 5
OWN: Final = "this dashboard"  # the kind of the endpoint that looks
MEMBERS: Final = ("kind", "member", "address", "status", "in/s", "out/s", "waiting")
TOPICS: Final = ("topic", "partitions", "records", "size", "records/s", "newest", "lag", "reader")
STATES: Final = ("state", "kind", "entries", "copies", "note")
MARKS: Final = {"good": "green", "warning": "yellow", "failed": "red"}


@options.with_groups
def top(
    context: Context,
    trust: mesh.Trust,
    life: mesh.Life,
    dialling: mesh.DialOptions,
    where: ObservedSystem,
    as_json: options.Json = False,
) -> None:
    """Show members, rates, lag and problems, live in a terminal, else once."""
    from chappe.cli.screen import Screen, is_terminal, wide_console
    from chappe.dashboard.watching import SourceRunner

    hear_warnings(where.tower)
    console = wide_console(PIPE_WIDTH)
    once = as_json or not is_terminal(console)
    with SourceRunner(sources(where, context, trust, life, dialling).all) as runner, UntilInterrupted(once or None):
        if once:
            found = _look(runner)
            if as_json:
                from chappe.observing.snapshot import to_json

                write_out(terminal.json_line(to_json(found)) + b"\n")
            else:
                console.print(picture(found, None))
            return
        try:
            with Screen(console) as screen:
                while True:
                    screen.show(lambda: picture(runner.snapshot(), console.height), list)
                    time.sleep(STEP_S)
        finally:
            console.print(picture(runner.snapshot(), None))  # stays


def _look(runner: SourceRunner) -> SystemSnapshot:
    """Return the first snapshot in which everybody who is there has been seen."""
    end = time.monotonic() + FIRST_S
    while (found := runner.snapshot()).awaited and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found


def picture(found: SystemSnapshot, height: int | None) -> RenderableType:
    """Draw a snapshot, in a terminal of such a height; None: with everything."""
    from rich.console import Group
    from rich.text import Text

    from chappe.cli.screen import Fitting

    members = [each for each in found.members if each.kind != OWN]
    topics = sorted(found.topics, key=lambda each: (-each.per_s, each.name))
    parts: list[RenderableType] = [_summary(found, members)]
    for problem in found.problems[:PROBLEMS_MAX]:
        text = terminal.line(f"{problem.text} {problem.mend}")
        parts.append(Text.assemble((f"{problem.level}: ", MARKS[problem.level]), text))
    if len(found.problems) > PROBLEMS_MAX:
        parts.append(Text(f"... and {many(len(found.problems) - PROBLEMS_MAX, 'more problem')}"))
    tables = [
        (MEMBERS, list(_member_rows(found, members)), 4, ("waiting", "address", "kind")),
        (TOPICS, [_topic_row(each, found.at) for each in topics], 1, ("size", "partitions", "newest", "records")),
        (STATES, list(_state_rows(found)), 2, ("note", "copies")),
    ]
    shown = [each for each in tables if each[1]]
    rooms = _rooms([len(rows) for _, rows, _, _ in shown], None if height is None else height - 2 - len(parts))
    for (columns, rows, left, spare), room in zip(shown, rooms, strict=True):
        text_columns = (*columns[:left], "reader", "note")
        parts += [Text(), Fitting(columns, rows[:room], text_columns, spare)]
        if len(rows) > room:
            parts.append(Text(f"... and {len(rows) - room:,} more", style="dim"))
    parts += [Text(terminal.line(note), style="dim") for note in found.notes]
    return Group(*parts)


def _rooms(wanted: Sequence[int], height: int | None) -> list[int]:
    """Share the height among tables, each with a head, a line before it and one that counts the rest."""
    if height is None:
        return list(wanted)
    rooms = [min(each, ROWS_MIN) for each in wanted]
    free = height - sum(rooms) - 3 * len(wanted)
    while free > 0 and (short := [n for n, each in enumerate(wanted) if rooms[n] < each]):
        for n in short[:free]:
            rooms[n] += 1
        free -= len(short)
    return rooms


def _summary(found: SystemSnapshot, members: Sequence[ObservedMember]) -> RenderableType:
    from rich.text import Text

    from chappe.dashboard.pages import words

    at = datetime.fromtimestamp(found.at / 1e6).strftime("%H:%M:%S")
    health = many(len(found.problems), "problem") if found.problems else "nothing is wrong"
    level = max((each.level for each in found.problems), key=list(MARKS).index, default="good")
    if found.awaited:
        health, level = "looking", "warning"
    per_s = words.rate(sum(each.per_s for each in found.topics))
    facts = f"{at}  {many(len(members), 'member')}, {many(found.topics_total, 'topic')}, {per_s} records/s, "
    return Text.assemble((facts, "bold"), (health, MARKS[level]))


def _member_rows(found: SystemSnapshot, members: Sequence[ObservedMember]) -> Iterator[tuple[str, ...]]:
    from chappe.dashboard.pages import words

    sent: Counter[str] = Counter()
    received: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    told: set[str] = set()
    for link in found.links:
        if link.kind == "introduces":
            continue  # beacons
        one, other = link.ends
        if link.sent_per_s is not None or link.received_per_s is not None:
            told |= {one, other}
        sent.update({one: link.sent_per_s or 0, other: link.received_per_s or 0})
        received.update({one: link.received_per_s or 0, other: link.sent_per_s or 0})
        waiting.update({one: link.waiting, other: link.waiting_back})
    for each in members:
        rates = [words.rate(count[each.id]) if each.id in told else "" for count in (received, sent)]
        name = each.name if each.named else f"({each.name})"
        yield each.kind, name, each.address, each.status, *rates, str(waiting[each.id] or "")


def _topic_row(topic: ObservedTopic, now_us: int) -> tuple[str, ...]:
    from chappe.dashboard.pages import words

    late = max(topic.readers, key=lambda each: each.lag, default=None)
    return (
        topic.name,
        f"{topic.partitions:,}",
        units.count(topic.records),
        units.human_bytes(topic.bytes),
        words.rate(topic.per_s),
        words.ago(topic.newest, now_us),
        "" if late is None else units.count(late.lag),
        "" if late is None else late.name,
    )


def _state_rows(found: SystemSnapshot) -> Iterator[tuple[str, ...]]:
    for each in found.keepings:
        entries = "" if each.entries is None else units.count(each.entries)
        yield each.name, each.kind, entries, str(len(each.copies)), each.note
