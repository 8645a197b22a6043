"""What the log's cores ask of their driver, besides ``core.Report`` and ``core.Halt``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from chappe.compiled import Frozen
from chappe.core import Halt, Report
from chappe.log.batch import Batch
from chappe.log.exactly_once.staged import Job
from chappe.log.messages import Message
from chappe.log.queries import Answer, Request
from chappe.log.storage import Append


class Publish(Frozen, frozen=True):
    """Send a message to whoever subscribed to it."""

    message: Message


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Ask all peers for messages that start with ``prefix`` (id octet and topic)."""

    prefix: bytes


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """Take a subscription back."""

    prefix: bytes


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request to a store's query socket; the answer comes with the same ``request_id``."""

    endpoint: str
    request_id: int
    request: Request


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer a request; ``client`` is what the driver gave with it."""

    client: bytes
    request_id: bytes
    answer: Answer
    batches: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Write:
    """Make these batches durable in one commit, then call ``handle_written`` or ``handle_write_failed``."""

    appends: tuple[Append, ...]


@dataclass(frozen=True, slots=True)
class Retain:
    """Run the retention policies, as a write runs, then call ``handle_retained``."""


@dataclass(frozen=True, slots=True)
class Transact:
    """Do a job of an exactly-once sink, as a write runs, then call ``handle_transacted`` with the ticket.

    A commit that fails before its commit point is reported as failed; after it, it is tried again until it succeeds,
    and nothing else is written meanwhile. Its records are published in one go.
    """

    ticket: int
    job: Job


class Deliver(Frozen, frozen=True):
    """Hand records to the application: those of ``batch`` from offset ``start`` on.

    ``since``: Of a sealed batch, skip the records before the first one of this time or later.
    """

    topic: str
    partition: str
    batch: Batch
    start: int
    since: int | None = None


@dataclass(frozen=True, slots=True)
class ClockRead:
    """The clock of a partition's producer was told, or is waited for no longer: its records can be judged."""

    partition: str


@dataclass(frozen=True, slots=True)
class Persist:
    """Write a batch to the producer's own journal of a topic before what follows."""

    body: bytes
    topic: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Everything before ``stored`` is held by enough stores, and with it what somebody waits for."""

    topic: str
    stored: int


@dataclass(frozen=True, slots=True)
class Trim:
    """Everything before ``offset`` is stored elsewhere: the topic's journal may drop it."""

    offset: int
    topic: str


class Of(Frozen, frozen=True):
    """Do this for one of the parts that a node carries: the one with this address."""

    address: str
    action: Action


@dataclass(frozen=True, slots=True)
class Broken:
    """A part met a defect, and the node carries it no more; the others go on."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Resume:
    """Messages were left in the queue, as nobody took them; they are wanted now."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Tell everybody that we go on with this identity."""

    identity: str


@dataclass(frozen=True, slots=True)
class Disclaim:
    """Take a claim back."""

    identity: str


@dataclass(frozen=True, slots=True)
class Beacon:
    """Send these frames to the tower."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """Listen to a member's publications."""

    endpoint: str
    address: str


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Stop listening to a member; ``address`` is empty if one with the same is at another endpoint."""

    endpoint: str
    address: str


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Another member took over a dead member's endpoint; the connection redials automatically and is left alone.

    ``former`` is empty if a member with the same address is at another endpoint.
    """

    endpoint: str
    former: str
    address: str


@dataclass(frozen=True, slots=True)
class Gone:
    """A member is heard no more."""

    address: str


@dataclass(frozen=True, slots=True)
class Forward:
    """Tower: send these frames to the nodes that subscribed to the first one."""

    frames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Relay:
    """Tower: pass a subscription on to the nodes' publishing sockets."""

    raw: bytes


Action: TypeAlias = (
    Publish | Subscribe | Unsubscribe | Ask | Reply | Write | Retain | Transact | Deliver | ClockRead | Persist
    | Progress | Trim | Of | Broken | Resume | Claim | Disclaim | Beacon | Connect | Disconnect | TakeOver | Gone
    | Forward | Relay | Report | Halt
)  # fmt: skip
