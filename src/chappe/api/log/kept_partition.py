"""Partitions that commands continue by default, so that a periodic job has one partition, not many.

One partition is kept per user, machine, topic, place (tower or forwarders) and identity for each concurrent command:
a few slots, each locked while in use. A run leaves its partition to the next one only if all its records were
stored; no later run sends the others, since their input is given again with the command.
A run continues a kept partition only if a store confirms its end; otherwise it creates a new one.
"""

from __future__ import annotations

import hashlib
import shutil
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from chappe.api.identity import state_directory
from chappe.api.log.discovery import discover
from chappe.api.log.producer import Producer
from chappe.errors import ChappeError, IdentityInUse, StorageError, StorageFormat, StorageLocked, UsageError
from chappe.log.compression import Compression
from chappe.runtime.log_seats import Where
from chappe.system.disk import FileLock
from chappe.system.places import users
from chappe.transports.queries import StoreClient

SLOTS: Final = 8  # concurrent commands per topic; others create partitions of their own
UNFINISHED: Final = "unfinished"  # marker file: not all records of a run are stored yet
IDENTITY: Final = "kept"  # of the producer in a slot
PLACE: Final = ("tower", "listen", "forwarders", "security")  # of a producer's arguments
ASK_S: Final = 1.0  # stores that do not answer for so long do not confirm the end of a partition
_CANNOT: Final = (OSError, StorageError, StorageFormat, StorageLocked, IdentityInUse)


def continued(topic: str, home: Path, identity: str, arguments: Mapping[str, Any]) -> Producer:
    """Return a producer in the partition of ``identity`` in ``home``, or in a new one there.

    The partition is continued if the stores' copies end where it does.
    """
    producer = Producer(topic, **arguments, identity=identity, directory=home)
    if producer.next_offset and not _ends_there(topic, producer, arguments):
        producer.close(0)
        shutil.rmtree(journal_of(home, identity), ignore_errors=True)
        producer = Producer(topic, **arguments, identity=identity, directory=home)
    return producer


def journal_of(home: Path, identity: str) -> Path:
    return state_directory("producers", identity, home)


class KeptPartitions:
    """The kept partitions of a topic, place and identity.

    ``directory`` is the user's state directory by default; ``where`` are ``tower``, ``listen``, ``forwarders`` and
    ``security``, as of ``Producer``, which raises the same UsageError for them.
    """

    def __init__(self, topic: str, *, directory: Path | None = None, **where: Any) -> None:
        place = Where.parse(**where)
        self._topic, self._where = topic, where
        said = repr((socket.gethostname(), topic, place.named, place.keys and str(place.keys.place)))
        self._name = hashlib.sha256(said.encode("utf-8", "surrogateescape")).hexdigest()[:24]
        self._directory = directory

    def free(self) -> Generator[Path]:
        """Yield each slot that no command uses, locked until the next one is asked for; none if none can be kept."""
        for number in range(SLOTS):
            try:
                base = self._directory or users("state") / "produce"
                home = base / f"{self._name}-{number}"
                home.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = FileLock(home / "lock")
            except BlockingIOError:  # held
                continue
            except (UsageError, OSError):
                return
            with lock:
                yield home

    @contextmanager
    def producer(self, min_acks: int = 1, compression: Compression | None = None) -> Iterator[Producer]:
        """Yield a producer in a kept partition, or in a new one.

        With ``min_acks`` 0 nothing confirms that all is stored, and no partition is kept.
        """
        arguments = {**self._where, "min_acks": min_acks, "compression": compression}
        with ExitStack() as ending:
            slots = ending.enter_context(closing(self.free()))
            home = next(slots, None) if min_acks else None
            producer = None if home is None else _going_on(self._topic, home, arguments)
            if home is not None and producer is not None:
                ending.callback(_leave, home, producer)
            yield ending.enter_context(producer or Producer(self._topic, **arguments))

    def take(self, journal: Path) -> None:
        """Move a kept partition to ``journal``, unless none is kept or there is one already."""
        with closing(self.free()) as slots, suppress(OSError):
            for home in () if journal.exists() else slots:
                if not (home / UNFINISHED).exists() and journal_of(home, IDENTITY).exists():
                    journal.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                    journal_of(home, IDENTITY).rename(journal)
                    return

    def give(self, journal: Path) -> None:
        """Keep the partition in ``journal``, all of which is stored, for later runs, if a slot is free."""
        with closing(self.free()) as slots, suppress(OSError):
            for home in slots:
                _drop_unfinished(home)
                kept = journal_of(home, IDENTITY)
                if not kept.exists():
                    kept.parent.mkdir(mode=0o700, exist_ok=True)
                    journal.rename(kept)
                    return


def _going_on(topic: str, home: Path, arguments: Mapping[str, Any]) -> Producer | None:
    """Return a producer in a slot's partition, which may be new; None if the slot is unusable."""
    try:
        _drop_unfinished(home)
        (home / UNFINISHED).touch()
        return continued(topic, home, IDENTITY, arguments)
    except _CANNOT:
        return None


def _leave(home: Path, producer: Producer) -> None:
    """Hand the partition of a closed producer to the next run, if all is stored."""
    if producer.stored == producer.next_offset:
        (home / UNFINISHED).unlink(missing_ok=True)


def _drop_unfinished(home: Path) -> None:
    if (home / UNFINISHED).exists():
        shutil.rmtree(journal_of(home, IDENTITY), ignore_errors=True)
        (home / UNFINISHED).unlink()


def _ends_there(topic: str, producer: Producer, arguments: Mapping[str, Any]) -> bool:
    """True if the stores' copies of the partition end where the producer continues."""
    where = {name: arguments[name] for name in PLACE if name in arguments}
    ends = []
    try:
        for store in discover(**where, timeout=ASK_S):
            with closing(StoreClient(store.endpoint, ASK_S, where.get("security"))) as client:
                ends += [
                    info.next
                    for info in client.heads(topic)[0]
                    if (info.topic, info.partition) == (topic, producer.partition)
                ]
    except (ChappeError, OSError):
        return False
    return bool(ends) and max(ends) == producer.next_offset
