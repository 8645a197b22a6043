"""Common parts of commands of the mesh: addresses, security, notices about peers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, TypeAlias

import typer
from typer import Context, Option

from chappe.cli import declared, options
from chappe.cli.console import say, warn
from chappe.cli.units import address
from chappe.errors import ChappeError, PeeringError, UsageError
from chappe.security import PASSPHRASE, Keys, is_loopback, permissions_file
from chappe.system import settings

if TYPE_CHECKING:
    from chappe import Endpoint
    from chappe.security import Security

PANEL: Final = "Mesh"
ENDPOINT: Final = "Endpoint"
HERE: Final = declared.HERE
WAIT_S: Final = 1.0  # peers get this long to say who subscribes
_TROUBLES: Final = (
    "MessagesDropped", "MessagesMalformed", "MessagesRefused", "PeerBlocked", "PeerRefused", "RefusedByPeer",
    "SubscriptionRefused", "RecordingStopped", "RecordingIncomplete",
)  # fmt: skip

Peers: TypeAlias = Annotated[
    list[str] | None,
    declared.of("mesh.peers").option("--peer", help=f"An endpoint to dial; {HERE} by default.", panel=PANEL),
]

LastingPeers: TypeAlias = Annotated[
    list[str] | None,
    declared.of("mesh.peers").option("--peer", help="An endpoint to dial, and again when it is lost.", panel=PANEL),
]
Listen: TypeAlias = Annotated[
    list[str] | None,
    declared.of("mesh.listen").option("--listen", help=f"Where to listen; {HERE} by default, port 0: any."),
]
Forwarding: TypeAlias = Annotated[
    bool,
    declared.of("mesh.forwarding").option("--forwarding/--no-forwarding", panel=ENDPOINT),
]
EndpointId: TypeAlias = Annotated[
    str | None, Option("--id", metavar="UUID", help="The endpoint's id; by default its certificate's, or a random one.")
]


@dataclass(frozen=True)
class Trust:
    """The options that say which peers an endpoint trusts."""

    PANEL: ClassVar = PANEL

    tls: Annotated[
        tuple[Path, str] | None,
        Option(metavar="DIRECTORY NAME", help="Certificates of `chappe keys`: the directory, and the name of ours."),
    ] = None
    anonymous: Annotated[
        bool, Option("--anonymous", help="TLS without certificates, as an unconfigured original has it.")
    ] = False
    plain: Annotated[
        bool, Option("--plain", help="No TLS beyond this machine either: all on the way may read and forge.")
    ] = False
    acting: options.Acting = None  # the words above say otherwise, if one is given

    @property
    def arguments(self) -> list[str]:
        """Return the same options for a child process, which inherits the environment."""
        tls = [] if self.tls is None else ["--tls", str(self.tls[0]), self.tls[1]]
        acting = ["--as", self.acting] if self.acting else []
        return [*tls, *(["--anonymous"] if self.anonymous else []), *(["--plain"] if self.plain else []), *acting]

    def security(self) -> Security | Keys:
        """Return the security that the options ask for. Raises UsageError if they contradict each other."""
        if (self.tls is not None) + self.anonymous + self.plain > 1:
            raise UsageError("give only one of --tls, --anonymous and --plain")
        if self.tls is not None:
            keys = Keys(self.tls[0] / self.tls[1], os.environ.get(PASSPHRASE))
            return keys if permissions_file(keys.directory).exists() else keys.tls()  # earlier versions made none
        if self.anonymous or self.plain:
            return "anonymous" if self.anonymous else "plain"
        options.be(self.acting)  # for what of the log is beside it
        return options.keys_of(self.acting)

    @property
    def of_log(self) -> Literal["plain"] | None:
        """The security of the log beside a mesh: an identity of the environment counts even if the mesh is plain."""
        return "plain" if self.plain and settings.identity() is None else None


@dataclass(frozen=True)
class Life:
    """The options of every endpoint that a command makes."""

    heartbeat_s: Annotated[float, declared.of("mesh.heartbeat_s").option(panel=ENDPOINT)] = declared.of(
        "mesh.heartbeat_s"
    ).default

    @property
    def of_endpoint(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(Queues) if hasattr(self, each.name)}

    def endpoint(self, security: Security | Keys, **more: Any) -> Endpoint:
        from chappe import Endpoint

        return Endpoint(security=security, **self.of_endpoint, **more)


@dataclass(frozen=True)
class Queues(Life):
    """The options of endpoints that publish or forward, whose messages wait for peers."""

    paths: Annotated[int, declared.of("mesh.paths").option(panel=ENDPOINT)] = declared.of("mesh.paths").default
    on_full: Annotated[options.OnFull, declared.of("mesh.on_full").option(panel=ENDPOINT)] = declared.of(
        "mesh.on_full"
    ).default
    peer_messages_max: Annotated[int, declared.of("mesh.peer_messages_max").option(panel=ENDPOINT)] = declared.of(
        "mesh.peer_messages_max"
    ).default
    peer_bytes_max: Annotated[int, declared.of("mesh.peer_bytes_max").option(panel=ENDPOINT)] = declared.of(
        "mesh.peer_bytes_max"
    ).default


@dataclass(frozen=True, slots=True)
class DialOptions:
    """The options that say when to redial a peer."""

    retry_s: Annotated[float, declared.of("mesh.retry_s").option(panel=ENDPOINT)] = declared.of("mesh.retry_s").default
    retry_max_s: Annotated[float | None, declared.of("mesh.retry_max_s").option(panel=ENDPOINT)] = None
    attempts: Annotated[int | None, declared.of("mesh.attempts").option(panel=ENDPOINT)] = None

    def heed(self, context: Context) -> DialOptions:
        """Raise UsageError if the longest wait is below the first one."""
        if self.retry_max_s is not None and self.retry_max_s < self.retry_s:
            raise UsageError(
                f"{declared.origin(context, 'mesh.retry_max_s')} is {self.retry_max_s:g}, below the "
                f"{self.retry_s:g} of {declared.origin(context, 'mesh.retry_s')}"
            )
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def keep(self, endpoint: Endpoint, peers: Iterable[tuple[str, int]]) -> None:
        """Peer with all of them in the background, and again when they are lost."""
        for host, port in peers:
            endpoint.peer_nosync(host, port, **self.arguments)


def addresses(security: Security | Keys, texts: Iterable[str]) -> list[tuple[str, int]]:
    """Parse addresses. Raises UsageError for a malformed one, or one beyond this machine without security."""
    found = [address(each) for each in texts]
    for host, _ in found:
        if security is None and not is_loopback(host):
            raise UsageError(
                f"{host} is not this machine: give --as DIRECTORY/NAME (`chappe keys` makes identities), or "
                "--plain if everybody on the way may read and forge"
            )
    return found


def shown(where: tuple[str, int]) -> str:
    """Return an address in the form that ``address`` parses."""
    host, port = where
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class PeerNotices:
    """Reports changes of peers, as a callback of ``Endpoint.statuses``; each sentence once in a row.

    An unreachable peer is reported once, until some peer comes or goes.

    Args:
        come_and_go: Peers dial this endpoint, and may leave. Otherwise it dials all of them: a lost peer is a problem,
            and a new peering is news only after a problem.
        quiet: Report only problems.
    """

    def __init__(self, *, come_and_go: bool = False, quiet: bool = False) -> None:
        self.lost = 0  # peerings, of peers that did not say goodbye
        self.met = False  # True once a peer was connected
        self._come_and_go = come_and_go
        self._quiet = quiet
        self._trouble = False
        self._last = ""
        self._errors: set[str] = set()

    def __call__(self, event: Any) -> None:
        kind = type(event).__name__
        lost = kind == "PeerLost"
        self.lost += lost and not event.left
        self.met = self.met or kind == "PeerAdded"
        wrong = isinstance(event, ChappeError) or kind in _TROUBLES
        wrong = wrong or (lost and not self._come_and_go)
        ended = isinstance(event, PeeringError) and event.last
        text = f"{event}; still trying" if isinstance(event, ChappeError) and not ended else str(event)
        changed = kind in ("PeerAdded", "PeerRemoved", "PeerLost")
        if text == self._last or text in self._errors or not (wrong or changed):
            return
        self._last = text
        if changed:
            self._errors.clear()
        elif isinstance(event, ChappeError):
            self._errors.add(text)
        if wrong:
            self._trouble = True
            warn(text)
        elif not self._quiet and (self._come_and_go or self._trouble):
            self._trouble = False
            say(text)


def dial(endpoint: Endpoint, peers: Iterable[tuple[str, int]]) -> dict[str, tuple[str, int]]:
    """Peer with all of them now; return their ids. Raises PeeringError for the first that does not answer."""
    return {endpoint.peer(host, port, retry_s=0): (host, port) for host, port in peers}


def listen(endpoint: Endpoint, places: Iterable[tuple[str, int]]) -> list[str]:
    """Accept peers at all places; return the addresses."""
    return [shown((host, endpoint.listen(host, port))) for host, port in places]


def until(endpoint: Endpoint, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
    """Wait until a condition holds at an endpoint, or the time is up; Ctrl-C ends the wait."""
    return endpoint.node.turns.wait(condition, timeout_s)


def await_subscribers(endpoint: Endpoint, topic: str | None) -> bool:
    """Wait up to ``WAIT_S`` until a reachable endpoint wants the topic; an original tells only its own wishes."""
    wanted = b"" if topic is None else topic.encode("utf-8", "surrogateescape")

    def known() -> bool:
        found = endpoint.core.peer_subscriptions()
        return bool(found) if topic is None else wanted.startswith(tuple(found))

    return until(endpoint, known, WAIT_S)


def check_met(endpoint: Endpoint, teller: PeerNotices, dialled: list[tuple[str, int]]) -> None:
    """Exit with an error if no peer was ever connected; its notice may still be on its way."""
    if dialled and not teller.met and not any(each.peer_id for each in endpoint.peers()):
        warn(f"nobody was ever reached at {', '.join(map(shown, dialled))}: start an endpoint with `chappe node`")
        raise typer.Exit(1)
