"""A client of a shared map, the base of its blocking and asyncio faces. Nothing here waits but ``leave``."""

from __future__ import annotations

import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic

from chappe.api import at_exit
from chappe.api.faces import Seconds, Steps, happened
from chappe.api.kv.map_sealing import NOTHING_LIKE_IT, MapSealing
from chappe.api.kv.map_values import (
    MapChange,
    MapCodec,
    V,
    check_name,
    decode_key,
    encode_key,
    encode_properties,
    encode_ttl,
)
from chappe.api.kv.map_watch import MapListener, MapWatch
from chappe.api.mesh.waiting import Asked, deadline_after, time_left
from chappe.core import Deliver, Resolve
from chappe.data.given import as_text, pairs, two
from chappe.defaults import MAP_STEP_BYTES_MAX, MAP_SUBTREE_BYTES_MAX
from chappe.errors import BufferFull, Closed, InvalidData, NoMaster, NotPermitted, RecordTooLarge, Sealed, UsageError
from chappe.kv.chp.client import KeyChanged, MapClientCore
from chappe.kv.chp.events import MapServerFound
from chappe.kv.chp.ledger import key_of, raw_key
from chappe.kv.chp.messages import SESSION_BYTES, Beat, properties_of
from chappe.kv.chp.sessions import SESSION, without_session
from chappe.kv.chp.stream import ENTRY_BYTES, Step, step_size
from chappe.kv.chp.streams import SUBTREES_BYTES_MAX, SUBTREES_MAX
from chappe.kv.engine import Entry, index_of
from chappe.limits import MAP_LIMITS
from chappe.log.events import ConnectionRefused
from chappe.runtime.driver import SYSTEM_CLOCK
from chappe.runtime.map_ports import MapClientPorts
from chappe.security import LogSecurity
from chappe.system import time
from chappe.system.forking import own
from chappe.transports.gate import gate_of, keys_of
from chappe.transports.maps import MapAddress

logger = logging.getLogger("chappe.kv")

EVENTS_MAX: Final = 1_000
AHEAD: Final = 2 * MAP_LIMITS.writes_window  # who writes many waits when so many are not confirmed
MANY: Final = 512  # writes of ``update`` made at once, and answered at once
CLOSE_S: Final = 2.0  # closing waits so long for writes that are not confirmed
_TOO_LATE: Final = "the write to the map is not confirmed yet; it may still be done"


class MapMember(at_exit.Collectable, Generic[V]):
    def __init__(
        self,
        servers: Sequence[str],
        values: Any,
        *,
        subtree: str | Iterable[str] = "",
        model: int | None = None,
        name: str = "",
        security: LogSecurity = None,
    ) -> None:
        own(self)
        keys = keys_of(security)
        gate = gate_of(keys)
        self.sealing = None if keys is None else MapSealing(keys, name)
        addresses = [MapAddress.parse(each).known(gate) for each in servers or ("",)]
        if model not in (None, 5, 6):
            raise UsageError(f"the Guide's models with servers like these are 5 and 6, not {model!r}")
        if 0 in [each.port for each in addresses]:
            raise UsageError("a map needs the ports of its servers")
        subtrees = tuple([_subtree(each) for each in ([subtree] if isinstance(subtree, str) else subtree)]) or (b"",)
        if self._sealed is not None:
            subtrees = tuple([self._sealed.key(each)[:MAP_SUBTREE_BYTES_MAX] for each in subtrees])
        if len(subtrees) > SUBTREES_MAX or sum(map(len, subtrees)) > SUBTREES_BYTES_MAX:
            raise UsageError(f"a map has at most {SUBTREES_MAX:,} subtrees, of {SUBTREES_BYTES_MAX:,} bytes together")
        self.codec: MapCodec[V] = MapCodec(values)
        self.core = MapClientCore(
            [str(each) for each in addresses], subtrees, os.urandom(SESSION_BYTES), SYSTEM_CLOCK,
            name=check_name(name), shown=partial(_shown, self.sealing),
        )  # fmt: skip
        self.refusal = ""  # why nobody answers, as far as that is known
        self._asked: dict[int, Asked] = {}
        self._tickets = itertools.count(1)
        self._watches: dict[MapListener, None] = {}
        self._events: deque[object] = deque(maxlen=EVENTS_MAX)
        published = (model or (5 if len(addresses) == 1 else 6)) == 6
        self.driver = MapClientPorts(addresses, self.core, published=published, user=self, gate=gate).driver
        self._turns = self.driver.turns
        self._lock = self.driver.lock
        at_exit.add(self)
        self.driver.start(self.core.start(time.monotonic()))

    @property
    def _sealed(self) -> MapSealing | None:
        """The cipher of the map; None if the map is plain."""
        return self.sealing if self.sealing is not None and self.sealing.active else None

    # -- reading -----------------------------------------------------------------------------------------------------

    def find(self, key: str) -> Entry | None:
        entries = self.core.engine.entries
        if self._sealed is not None:
            return entries.get(index_of(key_of(self._sealed.key(encode_key(key)))))
        if not isinstance(key, str):
            raise UsageError(f"a key is a str, not {key!r:.100}")
        found = entries.get(key)
        if found is None and not key.isascii():
            found = entries.get(index_of(key_of(encode_key(key))))
        return found

    def body(self, entry: Entry) -> V:
        return self.codec.decode(self._opened(entry)[0])

    def properties(self, key: str) -> dict[str, str]:
        entry = self.find(key)
        if entry is None:
            raise KeyError(key)
        return properties_of(without_session(self._opened(entry)[1]))

    def entries(self) -> list[Entry]:
        """Return all entries of one moment; of a sealed map those with keys that the group can open."""
        with self._lock:
            found = list(self.core.engine.entries.values())
        sealed = self._sealed
        return found if sealed is None else [each for each in found if sealed.plain_key(raw_key(each.key)) is not None]

    def snapshot(self) -> dict[str, V]:
        return {self._key(each): self.body(each) for each in self.entries()}

    def chunks(self) -> Iterator[list[str]]:
        """Yield all keys of one moment, as many together as fit into one step."""
        chunk: list[str] = []
        size = 0
        for key in self.keys():
            counts = len(encode_key(key)) + ENTRY_BYTES
            if size + counts > MAP_STEP_BYTES_MAX:
                yield chunk
                chunk, size = [], 0
            chunk.append(key)
            size += counts
        if chunk:
            yield chunk

    def keys(self) -> list[str]:
        return [self._key(each) for each in self.entries()]

    def raw(self, entry: Entry) -> tuple[bytes, bytes, dict[str, str]]:
        """Return key and value in bytes, and the properties, of an entry."""
        body, properties = self._opened(entry)
        return self._raw_key(raw_key(entry.key)), body, properties_of(without_session(properties))

    def left_s(self, entry: Entry) -> float | None:
        """Return the seconds until the server deletes an entry, as far as it has told; None: it stays."""
        return self.core.left_s(entry, time.monotonic())

    def _opened(self, entry: Entry) -> tuple[bytes, bytes]:
        """Return value and properties. Raises Sealed."""
        value: Any = entry.value
        if self._sealed is not None:
            return self._sealed.open(raw_key(entry.key), value[0])
        return value[0], value[2]

    def _raw_key(self, wire: bytes) -> bytes:
        return wire if self._sealed is None else self._sealed.plain_key(wire) or b""

    def _key(self, entry: Entry) -> str:
        return decode_key(entry.key if self._sealed is None else key_of(self._raw_key(raw_key(entry.key))))

    def change(self, told: KeyChanged) -> MapChange[V]:
        """Convert a core's change for users. Raises InvalidData for a value that is not of the map's type."""
        key = decode_key(key_of(self._raw_key(told.key)))
        value = before = None
        with suppress(InvalidData, Sealed):  # what it was matters less than that it is mended
            before = self._told_value(told.key, told.before)
        try:
            value = self._told_value(told.key, told.body)
        except (InvalidData, Sealed) as problem:
            raise InvalidData(f"{key!a}: {problem}") from None
        kind: Any = "erase" if not told.body else "update" if told.before else "insert"
        return MapChange(kind, key, value, before)

    def _told_value(self, key: bytes, body: bytes) -> V | None:
        if not body:
            return None
        return self.codec.decode(body if self._sealed is None else self._sealed.open(key, body)[0])

    def events(self) -> list[object]:
        """Return the events since the last call. Raises MemberStopped if there are none, because of a defect."""
        return happened(self._events, self._turns.check)

    def check(self) -> None:
        if self._turns.closed:
            raise Closed("the map was closed")
        self._turns.check()

    # -- writing -----------------------------------------------------------------------------------------------------

    def step(
        self,
        sets: Mapping[str, V | None],
        expected: Mapping[str, V | None] | None = None,
        ttl_s: Seconds = None,
        properties: Mapping[str, str] | None = None,
        session: bool = False,
    ) -> Step:
        """Make a step of the core; None deletes a key, and expects that it is missing. Raises UsageError."""
        ttl_ms, raw = encode_ttl(ttl_s), encode_properties(properties)
        encode = self._encode
        made = Step(
            tuple([self.entry_set(key, body := encode(value), ttl_ms if body else 0, raw if body else b"", session)
                   for key, value in sets.items()]),
            tuple([self._expected(key, encode(value)) for key, value in (expected or {}).items()]),
        )  # fmt: skip
        if len(made.sets) + len(made.expected) > 1 and (size := step_size(made)) > MAP_STEP_BYTES_MAX:
            raise RecordTooLarge(
                f"a step has at most {MAP_STEP_BYTES_MAX:,} bytes, with {ENTRY_BYTES} for each key, not {size:,}"
            )
        return made

    def single_step(
        self, key: str, value: V, ttl_s: Seconds, properties: Mapping[str, str] | None, session: bool
    ) -> Step:
        raw = encode_properties(properties) if properties else b""
        return Step((self.entry_set(key, self._encode_set(value), encode_ttl(ttl_s), raw, session),))

    def single_steps(self, items: object, ttl_s: Seconds) -> Iterator[Step]:
        ttl_ms = encode_ttl(ttl_s)
        encode = self._encode_set
        for each in pairs(items, "items"):
            key, value = two(each, "an item is a key and a value")
            yield Step((self.entry_set(key, encode(value), ttl_ms, b""),))

    def entry_set(
        self, key: str, body: bytes, ttl_ms: int, properties: bytes, session: bool = False
    ) -> tuple[bytes, bytes, int, bytes]:
        """Return the write of one key in the form of the server. Raises Sealed.

        The mark of a session value is for the server, so it stays plain in a sealed map, as the ttl does.
        """
        raw = encode_key(key)
        mark = SESSION if session and body else b""
        if self._sealed is None:
            if self.sealing is not None:
                self.sealing.check_plain(raw)
            return raw, body, ttl_ms, mark + properties
        wire = encode_key(decode_key(self._sealed.key(raw)))  # which may be too long
        return wire, self._sealed.seal(wire, body, properties) if body else b"", ttl_ms, mark

    def _expected(self, key: str, body: bytes) -> tuple[bytes, bytes]:
        """Return the value to compare. A sealed one is compared with the copy here, which alone has the same bytes."""
        raw = encode_key(key)
        if self._sealed is None:
            return raw, body
        wire, entry = self._sealed.key(raw), self.find(key)
        if not body:
            return wire, body
        if entry is None or self._opened(entry)[0] != body:
            return wire, NOTHING_LIKE_IT
        value: Any = entry.value
        return wire, value[0]

    def writing(self, step: Step, wait: bool, timeout: Seconds) -> Steps[bool]:
        """Write, after a wait for room; return False if an expected value was not there."""
        deadline = deadline_after(timeout)
        while True:
            try:
                asked = self._try(step, wait)
                break
            except BufferFull:
                if not (yield self._room, time_left(deadline)):
                    self.check()
                    raise
        if asked is None:
            return True
        try:
            yield asked.done, time_left(deadline)
        except BaseException:  # Ctrl-C, a cancellation
            asked.forget()
            raise
        return bool(asked.take(_TOO_LATE))

    def writing_many(self, all_steps: Iterable[Step], timeout: Seconds) -> Steps[None]:
        """Write many; raise the first error when all are done."""
        deadline = deadline_after(timeout)
        asked: list[Asked] = []
        failed: list[Exception] = []
        source = iter(all_steps)
        while steps := list(itertools.islice(source, MANY)):
            while True:
                made, written = self._try_many(steps)
                if made is not None:
                    asked.append(made)
                if written == len(steps):
                    break
                steps = steps[written:]
                if not (yield self._room, time_left(deadline)):
                    self.check()
                    raise BufferFull("too many writes to the map wait for a server")
            if self.core.pending > AHEAD:  # more would only wait here, and make the garbage collector slow
                yield self._caught_up, time_left(deadline)
            yield None
        for each in asked:
            try:
                yield each.done, time_left(deadline)
                each.take(_TOO_LATE)
            except Exception as problem:
                failed.append(problem)
        if failed:
            raise failed[0]

    def awaiting_ready(self, timeout: Seconds) -> Steps[None]:
        if not (yield (lambda: self.core.ready or bool(self.core.refusals)), timeout) or not self.core.ready:
            self.check()
            for server, why in self.core.refusals.items():
                raise NotPermitted(f"the server at {server} refuses: {why}")
            servers = " nor ".join(self.core.servers)
            for server, name in self.core.others.items():
                raise NoMaster(f"the server at {server} has the map {name!r}, and not the one that is wanted")
            absent = self.passive or f"no map server answered at {servers} in time: start one, or give its address"
            raise NoMaster(absent + self.refusal)

    @property
    def heard(self) -> list[Beat | None]:
        """The last heartbeat of each server, in the order of the arguments; None for one that sent none."""
        return self.core.heard(time.monotonic())

    @property
    def silent(self) -> list[str]:
        """Servers that have been silent lately."""
        return self.core.silent(time.monotonic())

    @property
    def passive(self) -> str:
        """A sentence if servers answer and all are passive; empty if none answers."""
        found = self.core.passive(time.monotonic())
        if not found:
            return ""
        are, they = ("are", "each of them says") if len(found) > 1 else ("is", "it says")
        return f"no map server is active: {' and '.join(found)} {are} passive, and {they} why"

    def awaiting(self, key: str, wanted: Callable[[V | None], bool], timeout: Seconds) -> Steps[V | None]:
        """Wait until the value of a key is as wanted; return it, or raise the error of ``wanted``."""
        found: list[V | None] = []
        failed: list[Exception] = []

        def so() -> bool:
            if not found and not failed:
                try:
                    entry = self.find(key)
                    value = None if entry is None else self.body(entry)
                    if wanted(value):
                        found.append(value)
                except Exception as problem:  # is for the waiting caller, not for whatever thread asks
                    failed.append(problem)
            return bool(found or failed)

        if not (yield so, timeout):
            self.check()
            raise TimeoutError(f"the value of {key!r} is not as wanted after {timeout:g} s")
        if failed:
            raise failed[0]
        return found[0]

    def _encode_set(self, value: V) -> bytes:
        if value is None:  # which deletes in a step
            raise UsageError("None is not a value of a map: use delete")
        return self.codec.encode(value)

    def _encode(self, value: V | None) -> bytes:
        return b"" if value is None else self.codec.encode(value)

    def _caught_up(self) -> bool:
        return self.core.pending <= AHEAD // 2

    def _room(self) -> bool:
        return self.core.room

    def _try(self, step: Step, wait: bool) -> Asked | None:
        with self._lock:
            self.check()
            ticket = next(self._tickets) if wait else None
            effects = self.core.write(step, ticket, time.monotonic())
            asked = None if ticket is None else Asked(self._turns, self._asked, ticket)
            if wait:
                self.driver.do(effects)
            else:
                self.driver.look_at(0.0)  # others may follow: they leave together
            self._turns.tell()
            return asked

    def _try_many(self, steps: list[Step]) -> tuple[Asked | None, int]:
        """Write as many as there is room for; return the question that their outcome answers, and their number."""
        asked = None
        with self._lock:
            self.check()
            ticket = next(self._tickets)
            written = self.core.write_all(steps, ticket)
            if written:
                asked = Asked(self._turns, self._asked, ticket)
                self.driver.do(())
                self._turns.tell()
        self._turns.serve()  # what has come meanwhile; else it would wait until there is no room
        return asked, written

    # -- watching ----------------------------------------------------------------------------------------------------

    def watch(self, key: str | None, prefix: str | None, messages_max: int, on_full: str) -> MapWatch[V]:
        if on_full not in ("drop_oldest", "disconnect"):
            raise UsageError(f"on_full is drop_oldest or disconnect, not {on_full!r}")
        if messages_max < 1:
            raise UsageError("a watch needs room for one change at least")
        if key is not None and prefix is not None:
            raise UsageError("watch a key or a prefix, not both")
        wanted: Callable[[bytes], bool]
        if key is not None:
            wanted = encode_key(key).__eq__
        else:
            begins = _subtree(prefix or "")
            wanted = lambda found: found.startswith(begins)  # noqa: E731
        if self._sealed is not None:
            wanted = partial(_wants_plain, self._sealed, wanted)
        made = MapWatch(self, wanted, messages_max, disconnect=on_full == "disconnect")
        self.add_watch(made)
        return made

    def add_watch(self, watch: MapListener) -> None:
        with self._lock:
            self.check()
            self._watches[watch] = None
            self.core.watched = True

    def forget_watch(self, watch: MapListener) -> None:
        """Remove a watch that has ended; the lock is held."""
        self._watches.pop(watch, None)
        self.core.watched = bool(self._watches)

    # -- as a ``MapUser``, with the lock held --------------------------------------------------------------------------

    def resolved(self, effect: Resolve) -> None:
        asked = self._asked.get(effect.ticket)
        if asked is not None:
            asked.answer(effect.outcome)

    def changed(self, effect: Deliver) -> None:
        changes: Sequence[KeyChanged] = effect.messages
        for watch in self._watches:
            for change in changes:
                watch.told(change)

    def reported(self, event: object) -> None:
        if isinstance(event, ConnectionRefused):
            self.refusal = f"; {event}"
        logger.log(logging.INFO if isinstance(event, MapServerFound) else logging.WARNING, "%s", event)
        self._events.append(event)

    # -- the end -----------------------------------------------------------------------------------------------------

    def begin_leave(self) -> None:
        """Do nothing: writes are sent as they come."""

    def __repr__(self) -> str:
        return f"<SharedMap of {', '.join(self.core.servers)}>"

    def leave(self, timeout_s: float = CLOSE_S) -> list[str]:
        """Close, after writes under way are confirmed, or time is up; return sentences about the rest."""
        at_exit.remove(self)
        if self._turns.closed:
            return []
        self._turns.wait(lambda: not self.core.pending, timeout_s if self.core.state == "active" else 0.0)
        left = self.core.pending
        for watch in list(self._watches):
            watch.close()
        self.driver.close()
        return [f"{left:,} writes to a shared map were not confirmed, and may be lost"] if left else []


def _shown(sealing: MapSealing | None, key: bytes) -> str:
    """Return the key that events name: of a sealed map the plain one, if it can be opened."""
    plain: bytes | None = key
    if sealing is not None and sealing.active:
        try:
            plain = sealing.plain_key(key)
        except Sealed:
            plain = None
    return "(a sealed key)" if plain is None else plain.decode("utf-8", "replace")


def _wants_plain(sealing: MapSealing, wanted: Callable[[bytes], bool], wire: bytes) -> bool:
    plain = sealing.plain_key(wire)
    return plain is not None and wanted(plain)


def _subtree(text: str) -> bytes:
    try:
        raw = as_text(text, "a prefix of keys").encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise UsageError(f"{text!a} is not a prefix of keys: it holds half of a surrogate pair") from None
    if len(raw) > MAP_SUBTREE_BYTES_MAX:
        raise UsageError(f"a subtree has at most {MAP_SUBTREE_BYTES_MAX:,} bytes, not {len(raw):,}")
    return raw
