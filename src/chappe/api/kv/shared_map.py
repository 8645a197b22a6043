"""A shared map: keys and values of many programs."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping, MutableMapping, ValuesView
from typing import Any, Final, Generic, Literal, Unpack, overload

from chappe.api.faces import Closeable, Seconds, Steps, T, run
from chappe.api.kv.map_member import MapMember
from chappe.api.kv.map_values import MapChange, MapOptions, V
from chappe.api.kv.map_watch import MapWatch
from chappe.api.mesh.arguments import MISSING
from chappe.data.given import as_text
from chappe.data.markup import many, table
from chappe.defaults import SUBSCRIBER_MESSAGES_MAX
from chappe.kv.chp.client import MapState
from chappe.kv.chp.stream import Step
from chappe.security import LogSecurity
from chappe.system.forking import own

WAIT_S: Final = 10.0  # a write waits this long for its outcome, and a new map for its server


class ReadableMap(Generic[V]):
    """The half of ``SharedMap`` and ``AsyncSharedMap`` that never waits."""

    member: MapMember[V]

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def state(self) -> MapState:
        """``active``: a server is followed. ``synchronising``: a snapshot comes. ``connecting``: no server answers."""
        return self.member.core.state

    @property
    def server(self) -> str | None:
        """The server that is followed."""
        return self.member.core.server

    @property
    def ready(self) -> bool:
        """True once there was a snapshot; before, the map is empty."""
        return self.member.core.ready

    @property
    def pending(self) -> int:
        """The number of unconfirmed writes."""
        return self.member.core.pending

    def events(self) -> list[object]:
        """Return the events since the last call: servers found and lost, writes refused (``chappe.kv.chp.events``).

        Raises MemberStopped if there are none, because of a defect.
        """
        return self.member.events()

    # -- reading -----------------------------------------------------------------------------------------------------

    def __getitem__(self, key: str) -> V:
        entry = self.member.find(key)
        if entry is None:
            raise KeyError(key)
        return self.member.body(entry)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self.member.find(key) is not None

    def __len__(self) -> int:
        return len(self.member.core.engine)

    def __iter__(self) -> Iterator[str]:
        return iter(self.member.keys())

    def __bool__(self) -> bool:
        """Return True, also for an empty map."""
        return True

    def snapshot(self) -> dict[str, V]:
        """Return all keys and values, of one moment."""
        return self.member.snapshot()

    def _repr_html_(self) -> str:
        """Show the first entries as a table, in notebooks."""
        found = self.snapshot()
        title = f"shared map, {self.state}: {many(len(found), 'entry', 'entries')}"
        return table(title, ("key", "value"), found.items(), len(found))

    def properties(self, key: str) -> dict[str, str]:
        """Return the properties that were written with a key, without its ttl. Raises KeyError."""
        return self.member.properties(key)

    def _done(self, step: Step, wait: bool, timeout: Seconds) -> Steps[None]:
        yield from self.member.writing(step, wait, timeout)


class SharedMap(Closeable, ReadableMap[V], MutableMapping[str, V]):
    """Keys and values that many programs share through a map server, or a pair of them, as a mapping of Python.

    Reading never waits and never fails: it shows the data in memory here, which a server keeps up to date. While no
    server answers (``state``) it shows the last state. Writing goes through the server, in one order for all.
    ``map[key] = value``, ``del map[key]`` and ``set`` return when the write is done: ordered, durable if the server has
    a backend, at both servers if there are two, and in this map. Use from several threads is safe.

    Servers are ``MapServer``, or the programs of the ZeroMQ Guide's models 5 and 6; the documentation lists the limits
    of these.

    Args:
        servers: ``HOST:PORT`` of one server or several, of which one is followed.
        subtree: One or several prefixes of keys, by convention ``/a/b/``; other keys are left out.
        values: The type of values: ``bytes``, ``str``, ``"json"`` for any JSON, or a type that msgspec knows, kept as
            JSON.
        model: The model of servers that are the Guide's programs: 5 (one server) or 6 (a pair, the default for
            several).
        name: The map's name, if there are several: a server of chappe's with another name is not followed.
        security: ``Keys("DIRECTORY/NAME")`` if servers have keys, ``"plain"``, or None for the identity of
            ``CHAPPE_IDENTITY``. Servers need the permission to ``attach-master``; ``hub@HOST:PORT`` names the identity
            there, where several may be servers.
        timeout: How long to wait for the first snapshot, in seconds; None: for ever, 0: not at all.

    Raises (every write):
        TimedOut: It is not confirmed yet; it may still be done.
        WriteUnknown: The server, a program of the Guide's, was lost before the write came back; or more than 131,072
            failed writes of all clients were not acknowledged, and the server forgot the outcome of this one.
        BackendFailure: The server's disk refused it; it is not done.
        InvalidOperation: The server refused it.
        NotPermitted: The permissions do not allow it.
        BufferFull: There was no room for it in time; it is not done.
        UsageError: A key or value that the map cannot have, such as an empty one.
        RecordTooLarge: A value beyond 16 MB, or a step of several keys beyond 15 MB.
        Closed: The map was closed.
    """

    @overload
    def __init__(
        self: SharedMap[bytes], *servers: str, timeout: Seconds = WAIT_S, **options: Unpack[MapOptions]
    ) -> None: ...
    @overload
    def __init__(
        self: SharedMap[Any],
        *servers: str,
        values: Literal["json"],
        timeout: Seconds = WAIT_S,
        **options: Unpack[MapOptions],
    ) -> None: ...
    @overload
    def __init__(
        self, *servers: str, values: type[V], timeout: Seconds = WAIT_S, **options: Unpack[MapOptions]
    ) -> None: ...
    def __init__(
        self,
        *servers: str,
        subtree: str | Iterable[str] = "",
        values: Any = bytes,
        model: Literal[5, 6] | None = None,
        name: str = "",
        security: LogSecurity = None,
        timeout: Seconds = WAIT_S,
    ) -> None:
        own(self)
        self.member = MapMember(servers, values, subtree=subtree, model=model, name=name, security=security)
        self._turns = self.member.driver.turns
        if timeout != 0:
            try:
                self.wait_ready(timeout)
            except BaseException:  # Ctrl-C too
                self.close()
                raise

    # -- writing -----------------------------------------------------------------------------------------------------

    def set(
        self,
        key: str,
        value: V,
        *,
        ttl: Seconds = None,
        session: bool = False,
        properties: Mapping[str, str] | None = None,
        wait: bool = True,
        timeout: Seconds = WAIT_S,
    ) -> None:
        """Set a value. With ``ttl`` the server deletes the key after this many seconds, unless it is set again.

        With ``session`` the value ends with this map: the server deletes it when the map is closed, or has been silent
        for 10 s because its process was killed. It stays if the map was only cut off and comes back within that time,
        and if servers take over from each other. Once any client sets the key without ``session`` the value stays.

        The class has the other arguments, and the errors of all writes.

        Raises:
            InvalidOperation: With ``session``: the server is not one of chappe, which alone can do this; or 65,536
                values of the map end with their clients already.
        """
        step = self.member.single_step(key, value, ttl, properties, session)
        return self._run(self._done(step, wait, timeout))

    def delete(self, key: str, *, wait: bool = True, timeout: Seconds = WAIT_S) -> None:
        """Remove a key, if it is there."""
        return self._run(self._done(self.member.step({as_text(key, "a key"): None}), wait, timeout))

    def set_many(
        self, items: Mapping[str, V] | Iterable[tuple[str, V]], *, ttl: Seconds = None, timeout: Seconds = None
    ) -> None:
        """Set many values, each on its own, much faster than one by one; raise the first error when all are done."""
        steps = self.member.single_steps(items, ttl)
        return self._run(self.member.writing_many(steps, timeout))

    def step(
        self,
        sets: Mapping[str, V | None],
        *,
        expected: Mapping[str, V | None] | None = None,
        ttl: Seconds = None,
        session: bool = False,
        properties: Mapping[str, str] | None = None,
        timeout: Seconds = WAIT_S,
    ) -> bool:
        """Write several keys in one step: every client sees all of it or nothing. None deletes a key.

        Args:
            session: The values end with this map, as with ``set``.
            expected: Values that must be there, None for no value: if anything else is, nothing is done.

        Returns:
            True if it was done.

        Raises:
            InvalidOperation: The server is not one of chappe, which alone can do this.
        """
        step = self.member.step(sets, expected, ttl, properties, session)
        return self._run(self.member.writing(step, True, timeout))

    def compare_and_set(
        self,
        key: str,
        expected: V | None,
        value: V | None,
        *,
        ttl: Seconds = None,
        session: bool = False,
        timeout: Seconds = WAIT_S,
    ) -> bool:
        """Set a value if ``expected`` is there, None for no value; return True if it was set.

        Of concurrent attempts one succeeds. With ``session`` the value ends with this map, as with ``set``: a lock
        whose owner is dead becomes free.

        Raises:
            InvalidOperation: The server is not one of chappe, which alone can do this.
        """
        key = as_text(key, "a key")
        step = self.member.step({key: value}, {key: expected}, ttl, session=session)
        return self._run(self.member.writing(step, True, timeout))

    def wait_for(
        self,
        key: str,
        value: object = MISSING,
        *,
        until: Callable[[V | None], bool] | None = None,
        timeout: Seconds = None,
    ) -> V | None:
        """Wait until a key has a value, this one, or one for which ``until`` is true (None: no value); return it.

        Raises:
            TimeoutError: The time was up first.
        """
        if until is None:
            until = (lambda found: found is not None) if value is MISSING else (lambda found: found == value)
        return self._run(self.member.awaiting(key, until, timeout))

    def wait_ready(self, timeout: Seconds = WAIT_S) -> None:
        """Wait for the first snapshot. Raises NoMaster if none came in time, NotPermitted if it is refused."""
        return self._run(self.member.awaiting_ready(timeout))

    def __setitem__(self, key: str, value: V) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.delete(key)

    @overload
    def get(self, key: str, /) -> V | None: ...
    @overload
    def get(self, key: str, /, default: Any) -> Any: ...
    def get(self, key: str, /, default: Any = None) -> Any:
        """Return the value under a key, or ``default``."""
        entry = self.member.find(key)
        return default if entry is None else self.member.body(entry)

    def keys(self) -> KeysView[str]:
        """Return all keys, of one moment."""
        return dict.fromkeys(self.member.keys()).keys()

    def items(self) -> ItemsView[str, V]:
        """Return all keys and values, of one moment."""
        return self.snapshot().items()

    def values(self) -> ValuesView[V]:
        """Return all values, of one moment."""
        return self.snapshot().values()

    def update(self, *others: Any, **more: V) -> None:
        """Update as ``dict.update`` does; all writes are under way at once."""
        self.set_many(dict(*others, **more))

    def clear(self) -> None:
        """Remove all keys that are here, in as few steps as it takes: one, up to some 15 MB of keys."""
        for keys in self.member.chunks():
            self.step(dict.fromkeys(keys))

    def watch(
        self,
        *,
        key: str | None = None,
        prefix: str | None = None,
        callback: Callable[[MapChange[V]], object] | None = None,
        on_full: Literal["drop_oldest", "disconnect"] = "drop_oldest",
        messages_max: int = SUBSCRIBER_MESSAGES_MAX,
    ) -> MapWatch[V]:
        """Watch changes of a key, of all that begin with ``prefix``, or of all; from now on.

        A map that finds a server again reports every difference.

        Args:
            callback: Called with each change, by a thread of this watch.
            on_full: The policy when more waits than ``messages_max``; ``MapWatch`` describes both.
        """
        made = self.member.watch(key, prefix, messages_max, on_full)
        if callback is not None:
            made.call_back(callback)
        return made

    def close(self) -> None:
        """Leave; wait for writes under way, two seconds at most. Safe to call twice."""
        self.member.leave()

    def __repr__(self) -> str:
        return f"<SharedMap of {', '.join(self.member.core.servers)}, {self.state}, {len(self):,} keys>"

    def _run(self, steps: Steps[T]) -> T:
        return run(steps, self._turns.wait)
