"""What ``chappe kv watch`` prints."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import typer

from chappe.cli import mesh
from chappe.cli.console import check_reader, exit_code, say, warn
from chappe.cli.kv_form import typed
from chappe.cli.values import shown

if TYPE_CHECKING:
    from chappe import DataStore, DataStoreEvent, DataStoreWatch
    from chappe.data.values import Value

CHUNK: Final = 256  # changes printed at once
POLL_S: Final = 0.25


class Teller:
    """Says what happens to peers and to the master of the store."""

    def __init__(self) -> None:
        self._peers = mesh.Teller()
        self._lost = False

    def __call__(self, event: Any) -> None:
        """Something happened: an event or an error of ``Endpoint.statuses``."""
        match type(event).__name__:
            case "MasterLost":
                self._lost = True
                warn(f"the master of store {event.store} is lost: {event.reason}; still trying")
            case "MasterFound" if self._lost:
                self._lost = False
                say(f"store {event.store} has a master again")
            case "TwoMasters":
                warn(f"store {event.store} has two masters, {event.followed} and {event.other}: close one")
            case _:
                self._peers(event)


def follow(
    store: DataStore, wanted: dict[str, Any], count: int | None, seconds: float | None, as_json: bool, as_text: bool
) -> None:
    """Print changes as they come; Ctrl-C ends it well unless a count or time was asked for."""
    try:
        with store.watch(**wanted) as watching:
            say(f"watching store {store.name}")
            try:
                _print(watching, count, seconds, _as_json if as_json else partial(_as_text, as_text=as_text))
            finally:
                if watching.dropped:
                    warn(f"{watching.dropped} changes are not shown: this was too slow")
    except KeyboardInterrupt as stop:
        if count is not None or seconds is not None:
            raise typer.Exit(exit_code(stop)) from None


def _print(
    watching: DataStoreWatch, count: int | None, seconds: float | None, render: Callable[[DataStoreEvent], bytes]
) -> None:
    end = None if seconds is None else time.monotonic() + seconds
    while count is None or count > 0:
        left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
        if left <= 0:
            return
        found = watching.get_many(CHUNK if count is None else min(CHUNK, count), left)
        count = None if count is None else count - len(found)
        if not found:
            check_reader()
        sys.stdout.buffer.writelines(render(each) for each in found)
        sys.stdout.buffer.flush()


def _as_text(event: DataStoreEvent, *, as_text: bool) -> bytes:
    key, value, _ = _parts(event)
    shows = "" if event.kind in ("erase", "expire") else f" -> {shown(value, as_text=as_text)}"
    return f"{event.kind} {shown(key, as_text=as_text)}{shows}\n".encode("utf-8", "backslashreplace")


def _as_json(event: DataStoreEvent) -> bytes:
    key, value, before = _parts(event)
    parts = [f'"event":"{event.kind}"', f'"key":{typed(key)}']
    if event.kind in ("insert", "update"):
        parts.append(f'"value":{typed(value)}')
    if event.kind != "insert":
        parts.append(f'"before":{typed(before)}')
    if event.expiry_s is not None:
        parts.append(f'"expiry_s":{event.expiry_s}')
    if event.publisher is not None:
        parts.append(f'"publisher":"{event.publisher}"')
    return f"{{{','.join(parts)}}}\n".encode("utf-8", "surrogateescape")


def _parts(event: DataStoreEvent) -> tuple[Value, Value, Value]:
    """Key, value and what was there before, with all their types."""
    found: Any = event.typed
    return found.key, found.value, found.before
