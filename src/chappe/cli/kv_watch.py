"""``chappe kv watch``: the changes of a data store and of its master."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from chappe.cli import mesh
from chappe.cli.console import say, warn
from chappe.cli.following import UntilInterrupted, print_changes
from chappe.cli.values import shown, typed
from chappe.data import terminal

if TYPE_CHECKING:
    from chappe import DataStore, DataStoreEvent


class StoreNotices:
    """Reports changes of peers and of the store's master, as a callback of ``Endpoint.statuses``."""

    def __init__(self) -> None:
        self._peers = mesh.PeerNotices()
        self._lost = False

    def __call__(self, event: Any) -> None:
        match type(event).__name__:
            case "MasterLost":
                self._lost = True
                warn(f"the master of store {event.store} is lost: {event.reason}; still trying")
            case "MasterFound" if self._lost:
                self._lost = False
                say(f"store {event.store} has a master again")
            case "TwoMasters":
                warn(str(event))
            case _:
                self._peers(event)


def follow(
    store: DataStore, wanted: dict[str, Any], count: int | None, seconds: float | None, as_json: bool, as_text: bool
) -> None:
    """Print changes as they come; Ctrl-C ends well unless a count or a time was given."""
    render = _as_json if as_json else partial(_as_text, as_text=as_text)
    with UntilInterrupted(count, seconds), store.watch(**wanted) as watching:
        say(f"watching store {store.name}")
        print_changes(watching, render, count, seconds)


def _as_text(event: DataStoreEvent, *, as_text: bool) -> bytes:
    change: Any = event.typed  # with all types
    shows = "" if event.kind in ("erase", "expire") else f" -> {shown(change.value, as_text=as_text)}"
    return f"{event.kind} {terminal.line(shown(change.key, as_text=as_text) + shows)}\n".encode()


def _as_json(event: DataStoreEvent) -> bytes:
    change: Any = event.typed
    parts = [f'"event":"{event.kind}"', f'"key":{typed(change.key)}']
    if event.kind in ("insert", "update"):
        parts.append(f'"value":{typed(change.value)}')
    if event.kind != "insert":
        parts.append(f'"before":{typed(change.before)}')
    if event.expiry_s is not None:
        parts.append(f'"expiry_s":{event.expiry_s}')
    if event.publisher is not None:
        parts.append(f'"publisher":"{event.publisher}"')
    return terminal.json_line(f"{{{','.join(parts)}}}\n".encode("utf-8", "surrogateescape"))
