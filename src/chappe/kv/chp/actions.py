"""What the cores of shared maps ask of their driver, besides ``core.Report`` and ``kv.actions``; done in order."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from chappe.core import Report
from chappe.kv.actions import Commit, Resolve

# -- a server: its own sockets


class Offer(msgspec.Struct, frozen=True):
    """Send messages to whoever is connected as ``client``, in order, as it takes them, behind what is offered already.

    With ``ask`` the driver calls ``handle_taken`` when all are sent. Whoever is not there any more:
    ``handle_unroutable``.
    """

    client: bytes
    messages: tuple[list[bytes], ...]
    ask: bool = False


class Withdraw(msgspec.Struct, frozen=True):
    """Forget what is offered to a client and not sent yet."""

    client: bytes


class Publish(msgspec.Struct, frozen=True):
    """Publish a message to who has subscribed to how its first frame begins."""

    frames: list[bytes]


# -- who follows servers, by their place in its list


class Listen(msgspec.Struct, frozen=True):
    """Subscribe to what a server publishes under a prefix, or no longer."""

    server: int
    prefix: bytes
    on: bool = True


class Ask(msgspec.Struct, frozen=True):
    """Send a message to a server's snapshot socket."""

    server: int
    frames: list[bytes]


class Reopen(msgspec.Struct, frozen=True):
    """Connect to a server's snapshot socket anew: what it still answers to the last connection does not come."""

    server: int


class Write(msgspec.Struct, frozen=True):
    """Send a message to the collector of a server, or of all that take what is published to them."""

    server: int
    frames: list[bytes]


class Told(msgspec.Struct, frozen=True):
    """Tell those who watch that a key has changed: its body now and before; empty where there is nothing."""

    key: bytes
    body: bytes
    before: bytes


Action: TypeAlias = Offer | Withdraw | Publish | Listen | Ask | Reopen | Write | Told | Commit | Resolve | Report
