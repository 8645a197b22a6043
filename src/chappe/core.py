"""The contract of every protocol core: inputs in, effects out, in the order to be done.

A core is a plain class without socket, file, thread or random source. It is told what happened, and answers with a
list of effects. A driver (``runtime/driver.py``) carries them out in order. Nothing else leads out of a core, so each
can be played, step by step, by a simulator.

What comes in, and what it is called by; each takes ``now``, monotonic seconds, as its last argument:

    from a link       handle_message, handle_request, handle_subscription, handle_frames, handle_link, handle_gone
    an answer         handle_answer of a question (``Ask``), handle_done of the disk (``Persist``)
    back-pressure     handle_full, handle_taken
    the application   plain verbs: send, publish, put, subscribe
    the clock         handle_timeout, when ``next_timeout`` says so; flush, after one or several inputs

The time of day is asked of the ``Clock`` that a core was made with, where it needs one: nanoseconds since 1970 UTC.

The effects here are those of all features. What only one of them has is what an effect carries, not another class.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from chappe.compiled import Frozen


class Clock(Protocol):
    """The time of day of one host."""

    def wall_ns(self) -> int:
        """Nanoseconds since 1970 UTC; it may jump, in both directions."""


class Core(Protocol):
    """A state machine that a driver runs."""

    def next_timeout(self) -> float:
        """When ``handle_timeout`` is to be called, monotonic seconds; infinity for never."""

    def handle_timeout(self, now: float) -> Sequence[Effect]:
        """Do what is due at ``now``; called too early it does nothing."""

    def flush(self, now: float) -> Sequence[Effect]:
        """Let go of what was gathered, since no more input is there at the moment."""


class Send(Frozen, frozen=True):
    """Send a message to one member, which is ``to`` by whatever name the core was told of it.

    It is dropped where the member is gone. ``topic`` is empty where the protocol has none. Of a data store, None is all
    that want the topic.
    """

    to: Any
    message: Any
    topic: bytes = b""


class Publish(Frozen, frozen=True):
    """Send a message to all that have subscribed to what it begins with."""

    message: Any


class Subscribe(Frozen, frozen=True):
    """Ask for all messages that begin with ``prefix``, or take that back; of one member, where ``to`` names it."""

    prefix: bytes
    on: bool = True
    to: Any = None


class Dial(Frozen, frozen=True):
    """Connect to ``address``; from then on the connection is known as ``link``."""

    link: Any
    address: Any


class Flush(Frozen, frozen=True):
    """Something waits for a connection: take it from the core whenever the connection has room."""

    link: Any


class Close(Frozen, frozen=True):
    """End a connection once what was sent on it is written. The core has forgotten it: nothing of it is handed in.

    Where members share a socket, what waits for this one is dropped.
    """

    link: Any
    reason: str = ""


class Persist(Frozen, frozen=True):
    """Have the disk do a job behind those before it, then call ``handle_done`` with the job and what it came to.

    With ``first`` the effects that follow it wait for that, and so does every other input: a vote is on disk before it
    is given. If the disk refuses they are dropped.
    """

    job: Any
    first: bool = False


class Ask(Frozen, frozen=True):
    """Send a request to one server; its answer comes by ``handle_answer`` with the same ticket, if at all."""

    to: Any
    ticket: int
    request: Any


class Reply(Frozen, frozen=True):
    """Answer a request of the client ``to``. A client that does not take its answers loses them, and asks again."""

    to: Any
    message: Any


class Deliver(Frozen, frozen=True):
    """Hand messages to a subscriber here."""

    to: Any
    messages: Any


class Resolve(Frozen, frozen=True):
    """A call that was given ``ticket`` is over: ``outcome`` is what it returns, or the exception that it raises."""

    ticket: int
    outcome: Any


class Report(Frozen, frozen=True):
    """Tell the application; ``event`` is one of the feature's event classes."""

    event: object


class Halt(Frozen, frozen=True):
    """Stop this member: going on would do harm. ``reason`` is one sentence for people."""

    reason: str


Effect: TypeAlias = (
    Send | Publish | Subscribe | Dial | Flush | Close | Persist | Ask | Reply | Deliver | Resolve | Report | Halt
)
