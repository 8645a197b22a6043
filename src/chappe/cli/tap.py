"""``chappe tap``: the traffic of a forwarder, or an endpoint of the mesh, that has a tap."""

from __future__ import annotations

import base64
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

from typer import Argument, Option

from chappe.api.log.lines import iso_time
from chappe.cli import mesh, options
from chappe.cli.console import check_reader, hear_warnings, warn, write_out
from chappe.cli.following import Seconds, UntilInterrupted
from chappe.cli.units import human_bytes, place
from chappe.data import terminal
from chappe.data.markup import many
from chappe.errors import InvalidData
from chappe.observing.lines import RATE_POINTS_MAX, TimeSeries

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe.api.taps import Passed, Shown, Subscribed, Tap

PAUSE_S: Final = 0.1  # between two looks, if the last one had room for more
ANSWER_S: Final = 5.0
LOOK_MIN: Final = 500  # seen at once: there is more
TELL_S: Final = 1.0  # between two words on what was missed
LAST: Final = 12  # messages in the picture ...
TOPICS: Final = 20  # ... topics, the busiest first ...
WANTED: Final = 12  # ... and subscriptions
TOPICS_MAX: Final = 10_000  # that are counted
TEXT_MAX: Final = 100  # characters of a value
BUSY: Final = ("topic", "messages", "messages/s", "bytes/s", "last from")
WHO: Final = ("wants", "who", "of which it gets")


def tap(
    at: Annotated[
        str, Argument(metavar="[NAME@][HOST:]PORT", help="What was given with `--tap` to `forward` or `node`.")
    ],
    topics: Annotated[
        list[str] | None, Option("--topic", metavar="PREFIX", help="Only topics that begin so; can be repeated.")
    ] = None,
    count: Annotated[int | None, Option(min=0, metavar="N", help="End after N lines.")] = None,
    seconds: Seconds = None,
    acting: options.Acting = None,
    as_json: options.Json = False,
) -> None:
    """Show what passes a forwarder or an endpoint of the mesh, and its subscribers.

    Nobody is slowed down: what cannot be shown in time is left out and counted.
    """
    from chappe.api.taps import Tap

    options.be(acting)
    hear_warnings()
    host, port = place(at)
    if count == 0:
        return
    with Tap(host, port, topics or ()) as found, UntilInterrupted(count, seconds):
        if sys.stdout.isatty() and not as_json and count is None:
            _watch(found, f"{mesh.shown((host, port))}", seconds)
        else:
            _print(found, count, seconds, as_json)


def _looks(tap: Tap, seconds: float | None) -> Iterator[Shown]:
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        shown = tap.look(ANSWER_S)
        yield shown
        if len(shown.seen) < LOOK_MIN:
            left = PAUSE_S if end is None else min(PAUSE_S, end - time.monotonic())
            if left > 0:
                time.sleep(left)
        if end is not None and time.monotonic() >= end:
            return


def _print(tap: Tap, count: int | None, seconds: float | None, as_json: bool) -> None:
    import msgspec

    from chappe.api.taps import Subscribed

    dump = msgspec.json.Encoder().encode
    missed, tell_at = 0, -1.0
    for shown in _looks(tap, seconds):
        lines: list[bytes] = []
        for each in shown.seen[:count]:
            if as_json:
                lines.append(dump(_subscription(each) if isinstance(each, Subscribed) else _message(each)))
            else:
                text = wanted_line(each) if isinstance(each, Subscribed) else line(each)
                lines.append(terminal.line(text).encode())
        missed += shown.missed
        if missed and time.monotonic() >= tell_at:
            tell_at = time.monotonic() + TELL_S
            if as_json:
                lines.append(dump({"kind": "missed", "count": missed}))
            else:
                warn(f"{missed:,} messages or more passed that are not shown")
            missed = 0
        write_out(b"".join(terminal.json_line(each) + b"\n" for each in lines))
        if not lines:
            check_reader()
        if count is not None:
            count -= len(shown.seen[:count])
            if not count:
                return


def _message(each: Passed) -> dict[str, Any]:
    found: dict[str, Any] = {
        "kind": each.kind, "timestamp": iso_time(each.at_us), "topic": name(each.topic), "from": each.source,
        "origin": each.origin or None, "to": each.to or None, "first": None if each.first < 0 else each.first,
        "count": each.count, "bytes": each.size,
    }  # fmt: skip
    try:
        found["content"] = each.content.decode()
    except UnicodeDecodeError:
        found["content"] = {"base64": base64.b64encode(each.content).decode()}
    return found


def _subscription(each: Subscribed) -> dict[str, Any]:
    return {
        "kind": "subscription", "timestamp": iso_time(each.at_us), "topic": name(each.topic), "who": each.who,
        "wants": list(each.kinds),
    }  # fmt: skip


def name(topic: bytes) -> str:
    return terminal.line(topic.decode("utf-8", "backslashreplace"))


def line(each: Passed) -> str:
    parts = [iso_time(each.at_us), f"{name(each.topic)}  {each.kind}"]
    if each.source:
        parts.append(f"from {each.source}")
    if each.origin:
        parts.append(f"of {each.origin}")
    if each.to:
        parts.append(f"to {each.to}")
    if each.count > 1:
        parts.append(f"{many(each.count, 'message')}" + (f" from {each.first}" if each.first >= 0 else ""))
    elif each.first >= 0:
        parts.append(f"@{each.first}")
    parts.append(human_bytes(each.size))
    return "  ".join([*parts, content(each)]).rstrip()


def content(each: Passed) -> str:
    """Return the beginning of a message's content; empty if it cannot be read, or not without its end."""
    from chappe.cli.values import message_texts

    text = each.content.decode("utf-8", "backslashreplace")
    if each.kind in ("data", "command"):
        try:
            text = "; ".join(message_texts(each.content)) if each.kind == "data" else ""
        except InvalidData:
            return ""
    text = terminal.line(text)
    return text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…"


def wanted_line(each: Subscribed) -> str:
    topics = f"{name(each.topic)}*" if each.topic else "all topics"
    if not each.kinds:
        return f"{iso_time(each.at_us)}  {topics}  wanted no more by {each.who}"
    return f"{iso_time(each.at_us)}  {topics}  wanted by {each.who}: {', '.join(each.kinds)}"


class Picture:
    """The picture in a terminal: the busiest topics, subscriptions, and the newest messages."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._topics: dict[bytes, _TopicTraffic] = {}
        self._counters = TimeSeries(2 * TOPICS_MAX, RATE_POINTS_MAX)
        self._wants: dict[tuple[str, bytes], tuple[str, ...]] = {}
        self._last: deque[Passed] = deque(maxlen=LAST)
        self._seen = self._missed = 0
        self._now = 0.0

    def add(self, shown: Shown, now: float) -> None:
        from chappe.api.taps import Subscribed

        self._missed += shown.missed
        for each in shown.seen:
            if isinstance(each, Subscribed):
                if each.kinds:
                    self._wants[each.who, each.topic] = each.kinds
                else:
                    self._wants.pop((each.who, each.topic), None)
                continue
            self._seen += each.count
            self._last.append(each)
            if each.topic not in self._topics and len(self._topics) >= TOPICS_MAX:
                continue
            topic = self._topics.setdefault(each.topic, _TopicTraffic())
            topic.messages += each.count
            topic.bytes += each.size
            topic.source = each.source
            self._counters.note(each.topic, topic.messages, now)
            self._counters.note((each.topic, "bytes"), topic.bytes, now)
        self._now = now

    def __call__(self) -> RenderableType:
        from rich.console import Group
        from rich.text import Text

        from chappe.cli.screen import Fitting

        rates = {topic: self._counters.rate(topic, self._now) for topic in self._topics}
        busiest = sorted(self._topics.items(), key=lambda each: (-rates[each[0]], -each[1].messages, each[0]))
        rows = [
            (
                name(topic),
                f"{each.messages:,}",
                f"{rates[topic]:,.0f}",
                human_bytes(self._counters.rate((topic, "bytes"), self._now)),
                each.source[:36],
            )
            for topic, each in busiest[:TOPICS]
        ]
        wants = [
            (f"{name(topic)}*", who, ", ".join(kinds)) for (who, topic), kinds in list(self._wants.items())[:WANTED]
        ]
        parts: list[Any] = [Text(self.title())]
        if rows:
            parts += [Text(""), Fitting(BUSY, rows, left=(BUSY[0], BUSY[4]), spare=(BUSY[4], BUSY[3]))]
        if len(busiest) > TOPICS:
            parts.append(Text(f"... and {len(busiest) - TOPICS:,} more topics"))
        if wants:
            parts += [Text(""), Fitting(WHO, wants, left=WHO, spare=(WHO[2],))]
        if len(self._wants) > WANTED:
            parts.append(Text(f"... and {len(self._wants) - WANTED:,} more subscriptions"))
        if self._last:
            parts += [Text(""), *(Text(line(each), no_wrap=True, overflow="ellipsis") for each in self._last)]
        return Group(*parts)

    def title(self) -> str:
        missed = f"; {self._missed:,} or more are not shown" if self._missed else ""
        return f"tap at {self._where}: {many(self._seen, 'message')} seen{missed}; Ctrl-C stops"


@dataclass(slots=True)
class _TopicTraffic:
    messages: int = 0
    bytes: int = 0
    source: str = ""


def _watch(tap: Tap, where: str, seconds: float | None) -> None:
    from chappe.cli.screen import People, Screen

    picture = Picture(where)
    with Screen(People()) as screen:
        for shown in _looks(tap, seconds):
            picture.add(shown, time.monotonic())
            screen.show(picture, lambda: ())
