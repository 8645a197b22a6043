"""The frame of commands that serve until they are stopped: identity, audit of refusals, numbers, pictures, the end.

A command is its options, with ``ServerIdentity`` and ``Numbers`` among them, what it runs, and a ``Display`` of that::

    @serves()
    def command(who: ServerIdentity, numbers: Numbers, as_json: options.Json = False) -> None:
        hear_warnings()
        with Server(security=who.security) as server:
            display = _ServerDisplay(server, "server", as_json)
            served = numbers.of(who.security, server)
            show(display, {"address": server.address}, f"server at {server.address}", served)
        stopped(as_json, "server")

With the setting ``audit`` such a command also writes its refusals to a topic (``chappe.api.audit``).
"""

from __future__ import annotations

import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Protocol, TypeAlias

from typer import Option

from chappe.cli import options
from chappe.cli.console import say, show_json, tell
from chappe.cli.units import place
from chappe.errors import UsageError
from chappe.observing.lines import RATE_POINTS_MAX, TimeSeries
from chappe.security import Keys, Security
from chappe.system import settings

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe.observing.numbers import Family

STEP_S: Final = 0.5
REPORT_S: Final = 5.0  # between two lines of JSON
LOOK_S: Final = 1.0  # members work on threads of their own; this often their health is checked


@dataclass(frozen=True, slots=True)
class ServerIdentity:
    """The options of commands that serve the log, its maps and chains."""

    acting: options.Acting = None
    plain: options.Plain = False

    def __post_init__(self) -> None:
        options.be(self.acting)

    @property
    def security(self) -> Literal["plain"] | None:
        return "plain" if self.plain else None

    @property
    def arguments(self) -> list[str]:
        """Return the options for a dashboard beside the command, which takes the identity from the environment."""
        return ["--plain"] if self.plain else []


def _checked(value: str | None) -> str | None:
    """Refuse a wrong place before anything is started. Raises UsageError."""
    if value is not None:
        place(value)
    return value


Metrics: TypeAlias = Annotated[
    str | None,
    Option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve /metrics for Prometheus, /health/live and /health/ready there; HOST: 127.0.0.1, port 0: any.",
        rich_help_panel="Numbers",
        callback=_checked,
    ),
]


@dataclass(frozen=True, slots=True)
class Numbers:
    """The option for numbers of the members that a command serves."""

    metrics: Metrics = None

    def of(self, security: Security | Keys, *members: object) -> Served:
        return Served(self.metrics, security, members)


@dataclass(frozen=True, slots=True)
class Served:
    """The members of a command, where their numbers are served, and with whose security."""

    where: str | None
    security: Security | Keys
    members: tuple[object, ...]

    @contextmanager
    def ready(self, as_json: bool, facts: dict[str, Any], text: str) -> Iterator[None]:
        """Say, to systemd as well, that members serve; their numbers are served meanwhile.

        Raises as ``serve_numbers``.
        """
        with ExitStack() as ending:
            if self.where is not None:
                from chappe.api.metrics import MemberNumbers
                from chappe.cli.metrics import serve_numbers

                server = serve_numbers(MemberNumbers(*self.members), self.where, self.security)
                ending.callback(server.close)
                facts = facts | {"metrics": server.url}
                text = f"{text}, metrics at {server.url}"
            tell(as_json, facts, f"{text}; Ctrl-C stops")
            notify("READY=1")
            yield


def serve_run(
    where: str | None,
    security: Security | Keys,
    ending: ExitStack,
    count: Callable[[], Iterable[Family]],
    why: Callable[[], str],
) -> str | None:
    """Serve the numbers of a command that is no member until ``ending``; return their address, None for no ``where``.

    ``why`` tells what keeps it from its work, in a sentence, empty for nothing. Raises as ``serve_numbers``.
    """
    if where is None:
        return None
    from chappe.cli.metrics import RunNumbers, serve_numbers

    server = serve_numbers(RunNumbers(count, why), where, security)
    ending.callback(server.close)
    return server.url


def notify(state: str) -> None:
    """Tell systemd a state, such as ``READY=1``, if it started this process with ``Type=notify``."""
    where = os.environ.get("NOTIFY_SOCKET", "")
    if where:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as telling:
            telling.sendto(state.encode(), f"\0{where[1:]}" if where.startswith("@") else where)


@dataclass(frozen=True, slots=True)
class KeptEntries:
    """The options that say where a server keeps entries."""

    backend: Annotated[
        Literal["memory", "sqlite", "rocksdb"],
        Option(help="Where entries are kept; in memory only while the command runs."),
    ] = "memory"
    path: Annotated[
        Path | None, Option(metavar="PATH", help="A file for sqlite, a directory for rocksdb; made if missing.")
    ] = None

    def __post_init__(self) -> None:
        if (self.path is None) is not (self.backend == "memory"):
            raise UsageError(
                "memory has no path: give --backend sqlite or rocksdb with --path"
                if self.backend == "memory"
                else f"the {self.backend} backend needs a path: give --path"
            )

    @property
    def facts(self) -> dict[str, Any]:
        return {"backend": self.backend, "path": None if self.path is None else str(self.path)}


def stopped(as_json: bool, what: str) -> None:
    if not as_json:
        say(f"{what} stopped")


class ServingMember(Protocol):
    def wait(self, timeout: float) -> None:
        """Wait. Raises MemberStopped after a defect."""


def wait(as_json: bool, facts: dict[str, Any], text: str, served: Served, *members: ServingMember) -> None:
    """Say that members serve, and wait for Ctrl-C or SIGTERM, which end the command well. Raises MemberStopped."""
    with suppress(KeyboardInterrupt), served.ready(as_json, facts, text):
        while True:
            for member in members:
                member.wait(LOOK_S / len(members))


class Display(ABC):
    """The display of a command that serves.

    Args:
        title: The first line of the picture.
        as_json: Print reports for a machine instead of the picture and news.
    """

    NEWS: ClassVar[frozenset[str]] = frozenset()  # events for people; members themselves tell of what is wrong

    def __init__(self, title: str, as_json: bool) -> None:
        self.title = title
        self.as_json = as_json
        self.counters = TimeSeries(points_max=RATE_POINTS_MAX)  # whose rates are shown

    @abstractmethod
    def look(self) -> None:
        """Take stock, after ``STEP_S``. Raises MemberStopped or Closed if the member has stopped."""

    @abstractmethod
    def picture(self) -> RenderableType:
        """Return the picture of the last look, for a terminal."""

    @abstractmethod
    def lines(self) -> Iterable[str]:
        """Yield the same without a terminal."""

    @abstractmethod
    def report(self) -> dict[str, Any]:
        """Return the same for a machine."""

    def per_s(self, counter: str, count: int) -> float:
        """The rate of a counter lately."""
        return self.counters.rise(counter, count, time.monotonic())

    def say_news(self, events: Iterable[object]) -> None:
        for event in events:
            if not self.as_json and type(event).__name__ in self.NEWS:
                say(str(event))


def show(display: Display, facts: dict[str, Any], text: str, served: Served) -> None:
    """Say that the command serves, and show its state until Ctrl-C or SIGTERM, which end it well.

    Raises as ``Display.look``.
    """
    with suppress(KeyboardInterrupt), served.ready(display.as_json, facts, text):
        _follow(display)


def _follow(display: Display) -> None:
    from chappe.cli.screen import People, Screen

    report_at = time.monotonic() + REPORT_S
    with Screen(People(stderr=True), quiet=display.as_json) as screen:
        while True:
            display.look()
            screen.show(display.picture, display.lines)
            if display.as_json and time.monotonic() >= report_at:
                report_at += REPORT_S
                show_json(display.report())


def serves(at: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command with groups of options, whose refusals go to the topic of ``audit`` if it has an identity.

    ``at`` names the parameter with its own address, if it is a tower or forwarder itself: then it writes there.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        grouped = options.with_groups(function)

        @wraps(grouped)
        def command(*args: Any, **given: Any) -> None:
            topic = os.environ.get("CHAPPE_AUDIT")  # where ``app`` puts that of the file
            keys = _keys(given)
            if not topic or keys is None:
                grouped(*args, **given)
                return
            from chappe.api.audit import Audit

            with Audit(topic, security=keys, **_where(given, at, keys)):
                grouped(*args, **given)

        return command

    return decorate


def _keys(given: dict[str, Any]) -> Keys | None:
    """Return the identity that ``--as`` or ``--tls`` names, unless an option disables keys."""
    if given.get("plain") or given.get("anonymous"):
        return None
    tls = given.get("tls")
    acting = given.get("acting") if tls is None else str(tls[0] / tls[1])
    return options.keys_of(acting or settings.identity())


def _where(given: dict[str, Any], at: str, keys: Keys) -> dict[str, Any]:
    """Return the arguments that reach the log: at its own address, as the command says, or as the settings say."""
    if not at:
        if (forwarders := settings.forwarders()) is not None:
            return {"forwarders": forwarders}
        return {"tower": given.get("tower")}
    host, colon, rest = str(given[at]).partition(":")
    if not host or "[" in host:
        raise UsageError(f"{given[at]!r}: refusals are written where it listens, which has to be a name or IPv4")
    here = f"{keys.name}@{'127.0.0.1' if host in ('*', '0.0.0.0') else host}{colon}{rest}"
    return {"forwarders": here} if at == "at" else {"tower": here, "listen": settings.listen(default=host)}
