"""The partition that ``chappe produce`` continues by default, so that a periodic job has one partition, not many.

One partition is kept per user, machine, topic and place (tower or forwarders) for each concurrent command:
a few slots, each locked while in use. A run leaves its partition to the next one only if all its records were
stored; no later run sends the others, since their input is given again with the command.
A run continues a kept partition only if a store confirms its end; otherwise it creates a new one.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from chappe.cli import options
from chappe.cli.topics import HURRY_S
from chappe.errors import ChappeError, IdentityInUse, StorageError, StorageFormat, StorageLocked, UsageError
from chappe.system.disk import FileLock
from chappe.system.places import users

if TYPE_CHECKING:
    from chappe import Producer

SLOTS: Final = 8  # concurrent commands per topic; others create partitions of their own
UNFINISHED: Final = "unfinished"  # marker file: not all records of a run are stored yet
_CANNOT: Final = (OSError, StorageError, StorageFormat, StorageLocked, IdentityInUse)


@dataclass
class Kept:
    """A slot that this process holds."""

    home: Path
    finished: bool = False  # all is stored

    def leave(self) -> None:
        """Hand the partition to the next run, if all is stored; called once the producer is closed."""
        if self.finished:
            (self.home / UNFINISHED).unlink(missing_ok=True)


@contextmanager
def kept_producer(topic: str, reach: options.Reach, min_acks: int) -> Iterator[tuple[Producer, Kept | None]]:
    """Yield a producer in the kept partition, or in a new one, with its slot if there is one."""
    from chappe import Producer

    arguments: dict[str, Any] = {**reach.arguments, "min_acks": min_acks}
    with ExitStack() as ending:
        slot = _slot(topic, reach, ending) if min_acks else None
        producer = None if slot is None else _going_on(topic, reach, slot, arguments)
        if producer is None:
            slot, producer = None, Producer(topic, **arguments)
        if slot is not None:
            ending.callback(slot.leave)
        ending.enter_context(producer)
        yield producer, slot


def _slot(topic: str, reach: options.Reach, ending: ExitStack) -> Kept | None:
    """Return the first free slot; None if all are taken or there is no directory for them."""
    said = repr((socket.gethostname(), topic, reach.named, reach.acting))
    name = hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:24]
    for number in range(SLOTS):
        try:
            home = users("state") / "produce" / f"{name}-{number}"
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            ending.enter_context(closing(FileLock(home / "lock")))
        except BlockingIOError:  # held
            continue
        except (UsageError, OSError):
            return None
        return Kept(home)
    return None


def _going_on(topic: str, reach: options.Reach, slot: Kept, arguments: dict[str, Any]) -> Producer | None:
    """Return a producer in a slot's partition, which may be new; None if the slot is unusable."""
    from chappe import Producer

    identity: dict[str, Any] = {"identity": "kept", "directory": slot.home}
    try:
        if (slot.home / UNFINISHED).exists():
            _forget(slot)
        (slot.home / UNFINISHED).touch()
        producer = Producer(topic, **arguments, **identity)
        if producer.next_offset and not _ends_there(topic, producer, reach):
            producer.close(0)
            _forget(slot)
            producer = Producer(topic, **arguments, **identity)
    except _CANNOT:
        return None
    return producer


def _forget(slot: Kept) -> None:
    shutil.rmtree(slot.home / "producers", ignore_errors=True)


def _ends_there(topic: str, producer: Producer, reach: options.Reach) -> bool:
    """True if the stores' copies of the partition end where the producer continues."""
    from chappe.api.log.discovery import discover
    from chappe.transports.queries import StoreClient

    ends = []
    try:
        for store in discover(**reach.arguments, timeout=HURRY_S):
            with closing(StoreClient(store.endpoint, HURRY_S)) as client:
                ends += [
                    info.next
                    for info in client.heads(topic)[0]
                    if (info.topic, info.partition) == (topic, producer.partition)
                ]
    except (ChappeError, OSError):
        return False
    return bool(ends) and max(ends) == producer.next_offset
