"""Attaching the master or a clone of a data store to an endpoint."""

from __future__ import annotations

import inspect
import math
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from chappe.api.kv.attached import AttachedStore
from chappe.api.kv.chained import Chaining, StoreServer
from chappe.api.kv.data_store import DataStore
from chappe.api.mesh.waiting import Asked
from chappe.data.binary import decode
from chappe.defaults import STORE_HISTORY_MAX
from chappe.errors import Damaged, InvalidData, MasterExists, NoMaster, Sealed, StaleData, TimedOut, UsageError
from chappe.kv.backend import Backend, Loaded
from chappe.kv.chained.core import ChainedMaster
from chappe.kv.clone import KvClone
from chappe.kv.entity import Entity, chappe_entity, check_name
from chappe.kv.history import KeyHistory, past_change
from chappe.kv.master import KvMaster
from chappe.limits import KV_LIMITS
from chappe.storage.kv_backends import RocksdbBackend, SqliteBackend, refuse_sealed_rows
from chappe.system import time

if TYPE_CHECKING:
    from chappe.api.mesh.hosting import EndpointHost
    from chappe.sealing.ring import Ring

_BACKENDS: Final[dict[str, Callable[..., Backend]]] = {"sqlite": SqliteBackend, "rocksdb": RocksdbBackend}
_LIFE_BITS: Final = 32


def attach_master(
    endpoint: EndpointHost,
    name: str,
    backend: str,
    options: dict[str, Any],
    chain: Chaining | None = None,
    history: int = 0,
) -> DataStore:
    raw = check_name(name)
    if type(history) is not int or not 0 <= history <= STORE_HISTORY_MAX:
        raise UsageError(f"history is how many changes of each key are kept, 0 to {STORE_HISTORY_MAX}, not {history!r}")
    if endpoint.permitted is not None:
        endpoint.permitted.attach_master(raw)
    _refuse_second(endpoint, name, chain is not None)
    ring = _ring(endpoint, raw)
    if chain is not None:
        if ring is not None:
            raise Sealed(f"store {name!r} is sealed, and a chain keeps what it has in plain: give it a backend")
        return _attach_chained(endpoint, name, chain, history)
    kept = open_backend(backend, options)
    try:
        if kept is not None and ring is not None:
            from chappe.storage.sealed_backend import SealedBackend

            kept = SealedBackend(kept, raw, ring)
        loaded = None if kept is None else kept.load()
        if loaded is not None and ring is None:
            refuse_sealed_rows(loaded, name)
        if loaded is not None:
            _check_history(loaded, name)
        core = KvMaster(
            name, _entity(endpoint), now=endpoint.node.member.time(time.monotonic()), clock=endpoint.node.member.clock,
            durable=kept is not None, loaded=loaded, notify=False,
            history=KeyHistory(history, KV_LIMITS, kept=kept is not None),
        )  # fmt: skip
        if kept is not None:
            kept.commit(core.reserve())
        with endpoint.node.lock:
            endpoint.check()
            _refuse_second(endpoint, name, False)
            made = AttachedStore(endpoint, core, kept)
            made.begin()
    except BaseException:
        if kept is not None:
            kept.close()
        raise
    return DataStore(made)


def _check_history(loaded: Loaded, name: str) -> None:
    """Raise Damaged if a change in the history of a key is malformed."""
    try:
        for row in loaded.history:
            decode(row.key)
            past_change(row)
    except InvalidData as problem:
        raise Damaged(
            f"the file of data store {name!r} has a malformed history: {problem}; restore it from a copy"
        ) from None


def _attach_chained(endpoint: EndpointHost, name: str, chain: Chaining, history: int) -> DataStore:
    core = ChainedMaster(
        name, _entity(endpoint), secrets.randbits(_LIFE_BITS), now=time.monotonic(), clock=endpoint.node.member.clock,
        notify=False, history=history,
    )  # fmt: skip
    server = StoreServer(chain, plain=endpoint.security == "plain")
    try:
        with endpoint.node.lock:
            endpoint.check()
            _refuse_second(endpoint, name, True)
            made = AttachedStore(endpoint, core, chain=server)
            made.begin()
    except BaseException:
        server.close()
        raise
    return DataStore(made)


def _ring(endpoint: EndpointHost, store: bytes) -> Ring | None:
    """Return the keys of the group for which a data store is sealed; None if it is plain. Raises Sealed."""
    with endpoint.node.lock:
        sealing = endpoint.node.sealing
        return None if sealing is None else sealing.ring(store)


def attach_clone(
    endpoint: EndpointHost, name: str, resync_s: float, stale_s: float, buffer_s: float, timeout: float | None
) -> DataStore:
    made = begin_clone(endpoint, name, resync_s, stale_s, buffer_s)
    if timeout == 0:
        return DataStore(made)
    try:
        asked = made.begin_await_ready()
        asked.wait(timeout)
        take_ready(made, asked, timeout)
    except BaseException:  # Ctrl-C too
        made.close()
        raise
    return DataStore(made)


def begin_clone(endpoint: EndpointHost, name: str, resync_s: float, stale_s: float, buffer_s: float) -> AttachedStore:
    raw = check_name(name)
    if endpoint.permitted is not None:
        endpoint.permitted.attach_clone(raw)
    _ring(endpoint, raw)
    for what, seconds in (("resync_s", resync_s), ("stale_s", stale_s), ("mutation_buffer_s", buffer_s)):
        if math.isnan(seconds):
            raise UsageError(f"{what} is a number of seconds, not {seconds!r}")
    with endpoint.node.lock:
        endpoint.check()
        if endpoint.node.member.has("master", name):
            raise MasterExists(f"this endpoint has the master of store {name!r}: use that one, it has all data")
        member = endpoint.node.member
        core = KvClone(
            name, _entity(endpoint), now=member.time(time.monotonic()), clock=member.clock,
            resync_s=resync_s, stale_s=stale_s, mutation_buffer_s=buffer_s, notify=False,
        )  # fmt: skip
        made = AttachedStore(endpoint, core)
        made.begin()
    return made


def take_ready(made: AttachedStore, asked: Asked, timeout: float | None) -> None:
    """Take the answer for the first snapshot. Raises NoMaster if none has come, TimedOut if it is not whole."""
    try:
        asked.take("")
    except (TimedOut, StaleData):
        within = "" if timeout is None else f" within {timeout:g} s"
        with made.endpoint.node.lock:
            coming = made.core.coming if isinstance(made.core, KvClone) else None
        if coming is not None:
            raise TimedOut(
                f"the master of store {made.name!r} has sent {coming[0]:,} of its {coming[1]:,} entries{within}: "
                "give it more time"
            ) from None
        lost = "" if made.lost_peer is None else f"; meanwhile it has {made.lost_peer}"
        raise NoMaster(
            f"no master of store {made.name!r} answered{within}: attach one to an endpoint that this one is peered "
            f"with{lost}"
        ) from None


def open_backend(backend: str, options: dict[str, Any]) -> Backend | None:
    """Open the backend of entries; None for memory. Raises UsageError or StorageError."""
    if backend == "memory":
        if options:
            raise UsageError(f"a master in memory takes no options, not {', '.join(options)}: choose another backend")
        return None
    kind = _BACKENDS.get(backend)
    if kind is None:
        raise UsageError(f"the backend is one of memory, {', '.join(_BACKENDS)}, not {backend!r}")
    known = list(inspect.signature(kind).parameters)
    unknown = [option for option in options if option not in known]
    if unknown:
        raise UsageError(f"the {backend} backend takes {', '.join(known)}, not {', '.join(unknown)}")
    if "path" not in options:
        raise UsageError(f"the {backend} backend needs a path: give path=...")
    return kind(**options)


def _refuse_second(endpoint: EndpointHost, name: str, chained: bool) -> None:
    """Raise MasterExists. Servers of a chain begin beside each other, and the chain decides on the master."""
    with endpoint.node.lock:
        member = endpoint.node.member
        if member.has("clone", name):
            raise MasterExists(f"this endpoint has a clone of store {name!r}: close it before you attach a master")
        if member.has("master", name) or (not chained and member.holders(name)):
            raise MasterExists(f"store {name!r} has a master already: attach a clone of it, or close the master first")


def _entity(endpoint: EndpointHost) -> Entity:
    """Return a new entity for each life: clones tell lives apart by it."""
    return chappe_entity(endpoint.core.own_id, secrets.randbits(_LIFE_BITS))
