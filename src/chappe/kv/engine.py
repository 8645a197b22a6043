"""The key-value engine: typed keys and values with expiry, versions and a feed of changes, all in memory.

Pure and without a notion of who writes or where it is kept: masters, clones and others build on it. Every change has a
version, one more than the last; ``changes_since`` hands out the latest ones.

Keys are told apart by type, as in sets and tables: ``1``, ``Count(1)``, ``1.0`` and ``True`` are four keys. Times are
nanoseconds since 1970. An entry may be read until somebody calls ``expire``: the owner keeps the clock.

A change can be undone (``revert``), the latest first, for owners whose disk may refuse what was done.

``DurableContents`` is a view of a store without its latest changes, which the disk may still refuse.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Literal

from chappe.compiled import Frozen, Leaf
from chappe.data.order import same, sort_key
from chappe.data.values import Value
from chappe.defaults import STORE_CHANGES_BYTES_MAX, STORE_CHANGES_MAX
from chappe.errors import NoSuchKey
from chappe.kv import operations
from chappe.kv.operations import CONTAINERS, Weight, grown, weigh

Index = object  # what a key is found by: a plain string itself, anything else its sort key
Kind = Literal["insert", "update", "erase", "expire"]
_HEAP_SLACK: Final = 64  # outdated deadlines that are not worth a clean-up
_SIZED: Final = CONTAINERS | {str, bytes}
_LARGE: Final = 512  # members or characters; smaller values are not counted
_MEMBER_BYTES: Final = 8  # of what refers to a member; members are shared by all that a container was


class Entry(Leaf, eq=False, gc=False):
    """One key and its value; replaced as a whole, never changed. Two are never equal.

    Values hold no entries, so the garbage collector has nothing to find here, and is spared looking at all of them.
    """

    key: Value
    value: Value
    expires_ns: int | None
    version: int
    weight: Weight | None = None  # of a container that has grown
    revision: int = 0  # the master's number of the write, for owners that know one


class Change(Frozen, frozen=True):
    """A change of one key: ``entry`` is there now, ``before`` was there."""

    kind: Kind
    version: int
    entry: Entry | None
    before: Entry | None

    @property
    def key(self) -> Value:
        found = self.entry or self.before
        assert found is not None
        return found.key


def index_of(key: Value) -> Index:
    """Return the index of a key; raises UnsupportedValue for anything that is not a value."""
    return key if type(key) is str else sort_key(key)


class Engine:
    """Entries in memory, their versions and the latest ``changes_max`` changes."""

    def __init__(self, changes_max: int = STORE_CHANGES_MAX) -> None:
        self.version = 0  # of the last change
        self.entries: dict[Index, Entry] = {}
        self._deadlines: list[tuple[int, int, Index]] = []  # when, the entry's version, which
        self._changes: deque[Change] = deque(maxlen=changes_max)
        self._large: deque[tuple[int, int]] = deque()  # of them, those that hold much: version and about how much
        self._large_bytes = 0

    def __len__(self) -> int:
        return len(self.entries)

    # -- reading ----------------------------------------------------------------------------------------------

    def invariants(self) -> list[str]:
        found = [
            f"{entry.key!r} is found under another key" for index, entry in self.entries.items()
            if index is not entry.key and index != index_of(entry.key)
        ]  # fmt: skip
        versions = [entry.version for entry in self.entries.values()]
        if len(set(versions)) != len(versions) or max(versions, default=0) > self.version:
            found.append(f"versions beyond {self.version}, or twice the same: {sorted(versions)[-3:]}")
        due = {(expires_ns, version) for expires_ns, version, _ in self._deadlines}
        for entry in self.entries.values():
            if entry.expires_ns is not None and (entry.expires_ns, entry.version) not in due:
                found.append(f"{entry.key!r} does not expire")
        return found

    def story(self, key: Value) -> str:
        entry = self.find(key)
        changes = [change for change in self._changes if index_of(change.key) == index_of(key)]
        past = ", ".join([f"{change.kind} as {change.version}" for change in changes[-5:]])
        now = "nothing is there" if entry is None else f"version {entry.version}: {entry.value!r:.60}"
        return f"{now} (of {self.version}; {past or 'no change is remembered'})"

    def get(self, key: Value) -> Value:
        """Return the value under a key; raises NoSuchKey."""
        entry = self.entries.get(key if type(key) is str else sort_key(key))
        if entry is None:
            raise NoSuchKey(f"nothing is stored under {key!r}")
        return entry.value

    def find(self, key: Value) -> Entry | None:
        return self.entries.get(key if type(key) is str else sort_key(key))

    def get_index(self, key: Value, index: Value) -> Value:
        """Return the part at ``index`` of a key's value (``operations.retrieve``). Raises NoSuchKey, TypeClash."""
        return operations.retrieve(self.get(key), index)

    def exists(self, key: Value) -> bool:
        return self.find(key) is not None

    def keys(self) -> list[Value]:
        return [entry.key for entry in self.entries.values()]

    def beginning(self, prefix: str) -> list[Entry]:
        return [each for each in self.entries.values() if type(each.key) is str and each.key.startswith(prefix)]

    def items(self) -> Iterator[Entry]:
        return iter(list(self.entries.values()))

    def changes_since(self, version: int) -> list[Change] | None:
        """Return all changes after ``version``; None if they are not remembered any more: take everything instead."""
        missing = self.version - version
        if missing > len(self._changes):
            return None
        return [self._changes[place] for place in range(len(self._changes) - missing, len(self._changes))]

    def frozen(self, without: Sequence[Change] = ()) -> list[Entry]:
        """Return all entries as they are now, the oldest first; they stay, as entries are replaced, never changed.

        ``without`` are the latest changes, in their order, if it is to show the state before them.
        """
        if not without:
            return list(self.entries.values())
        entries: dict[Index, Entry | None] = dict(self.entries)
        for change in reversed(without):
            entries[index_of(change.key)] = change.before
        return [entry for entry in entries.values() if entry is not None]

    def next_expiry_ns(self) -> int | None:
        heap = self._deadlines
        while heap:
            expires_ns, version, index = heap[0]
            entry = self.entries.get(index)
            if entry is not None and entry.version == version:
                return expires_ns
            heapq.heappop(heap)
        return None

    def soonest(self, count: int) -> list[Entry]:
        """Return the entries that expire next, at most ``count``, in that order; the time depends on that alone."""
        heap = self._deadlines
        found: list[Entry] = []
        ahead = [(heap[0], 0)] if heap else []  # a heap's smallest are found from its top, each before its two children
        for _ in range(2 * count + _HEAP_SLACK):  # some are outdated
            if not ahead or len(found) == count:
                break
            (_, version, index), place = heapq.heappop(ahead)
            entry = self.entries.get(index)
            if entry is not None and entry.version == version and (not found or found[-1] is not entry):
                found.append(entry)
            for child in range(2 * place + 1, min(2 * place + 3, len(heap))):
                heapq.heappush(ahead, (heap[child], child))
        return found

    # -- writing ----------------------------------------------------------------------------------------------

    def put(self, key: Value, value: Value, expires_ns: int | None = None) -> Change:
        """Set a value; without ``expires_ns`` it stays, whatever the one before had."""
        index = key if type(key) is str else sort_key(key)
        before = self.entries.get(index)
        self.version = version = self.version + 1
        entry = Entry(key, value, expires_ns, version)
        self.entries[index] = entry
        if expires_ns is not None:
            self._expires(index, entry)
        change = Change("insert" if before is None else "update", version, entry, before)
        self._changes.append(change)
        if type(value) in _SIZED and len(value) > _LARGE:  # type: ignore[arg-type]
            self._keep_few(version, value)
        return change

    def put_all(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        """Put each pair, for owners that remember no changes and want none."""
        assert not self._changes.maxlen
        entries = self.entries
        version = self.version
        for key, value in pairs:
            version += 1
            entries[key if type(key) is str else sort_key(key)] = Entry(key, value, None, version)
        self.version = version

    def put_unique(self, key: Value, value: Value, expires_ns: int | None = None) -> Change | None:
        return None if self.exists(key) else self.put(key, value, expires_ns)

    def add(self, key: Value, operand: Value, init: int, expires_ns: int | None = None) -> Change:
        """Add to a value, by default the empty one of type ``init``; raises TypeClash or InvalidOperation."""
        before = self.find(key)
        stored = operations.initial(init) if before is None else before.value
        made = operations.add(stored, operand)
        if type(made) not in CONTAINERS:
            return self.put(key, made, expires_ns)
        known = None if before is None else before.weight
        weight = grown(made, known or weigh(stored), operand)
        change = self.put(key, made, expires_ns)
        assert change.entry is not None
        change.entry.weight = weight
        return change

    def subtract(self, key: Value, operand: Value, expires_ns: int | None = None) -> Change:
        """Take away from a value; raises NoSuchKey, TypeClash or InvalidOperation."""
        before = self.find(key)
        change = self.put(key, operations.subtract(self.get(key), operand), expires_ns)
        assert change.entry is not None
        change.entry.weight = None if before is None else before.weight
        return change

    def erase(self, key: Value, kind: Literal["erase", "expire"] = "erase") -> Change | None:
        entry = self.entries.pop(key if type(key) is str else sort_key(key), None)
        if entry is None:
            return None
        self.version += 1
        change = Change(kind, self.version, None, entry)
        self._changes.append(change)
        return change

    def clear(self) -> list[Change]:
        return [change for entry in list(self.entries.values()) if (change := self.erase(entry.key)) is not None]

    def expire(self, now_ns: int) -> list[Change]:
        changes = []
        while (due_ns := self.next_expiry_ns()) is not None and due_ns <= now_ns:
            _, _, index = heapq.heappop(self._deadlines)
            change = self.erase(self.entries[index].key, "expire")
            assert change is not None
            changes.append(change)
        return changes

    def revert(self, change: Change) -> None:
        """Undo the latest change that was not undone yet; versions go on rising."""
        index = index_of(change.key)
        if change.before is None:
            del self.entries[index]
        else:
            self.entries[index] = change.before
            if change.before.expires_ns is not None:
                self._expires(index, change.before)
        self.version += 1
        self._changes.clear()  # who asks for what is new takes everything

    def replace(self, staged: StagedEntries, *, tell: bool) -> list[Change]:
        """Take over staged entries, in one step for all who read ``entries``; return the changes, if few or ``tell``.

        What is staged was compared with the entries as they still are.
        """
        before, self.entries = self.entries, staged.entries
        first = self.version + 1
        gone = [entry for index, entry in before.items() if index not in staged.entries]
        self.version = staged.version + len(gone)
        self._deadlines = staged.deadlines
        heapq.heapify(self._deadlines)
        remembered = self._changes.maxlen or 0
        if not tell and self.version + 1 - first > remembered:
            self._changes.clear()
            return []
        changes = []
        for index, entry in staged.entries.items():
            if entry.version >= first:
                old = before.get(index)
                changes.append(Change("insert" if old is None else "update", entry.version, entry, old))
        changes += [Change("erase", staged.version + place, None, entry) for place, entry in enumerate(gone, 1)]
        self._changes.extend(changes)
        return changes

    def set_expiry(self, entry: Entry, expires_ns: int) -> None:
        """Note when an entry expires; it stays the same entry, since its value is news to nobody."""
        index = index_of(entry.key)
        assert self.entries[index] is entry
        entry.expires_ns = expires_ns
        self._expires(index, entry)

    # -- inside -----------------------------------------------------------------------------------------------

    def _keep_few(self, version: int, value: Any) -> None:
        """Forget the oldest changes with large values, and those before them, beyond the bound."""
        held = len(value) * (_MEMBER_BYTES if type(value) in CONTAINERS else 1)
        self._large.append((version, held))
        self._large_bytes += held
        while self._large_bytes > STORE_CHANGES_BYTES_MAX:
            oldest, size = self._large.popleft()
            self._large_bytes -= size
            while self._changes and self._changes[0].version <= oldest:
                self._changes.popleft()

    def _expires(self, index: Index, entry: Entry) -> None:
        assert entry.expires_ns is not None
        heapq.heappush(self._deadlines, (entry.expires_ns, entry.version, index))
        if len(self._deadlines) > 2 * len(self.entries) + _HEAP_SLACK:
            self._deadlines = [
                (each.expires_ns, each.version, where)
                for where, each in self.entries.items()
                if each.expires_ns is not None
            ]
            heapq.heapify(self._deadlines)


class StagedEntries:
    """Entries that an engine will have, gathered beside it while it does not change."""

    def __init__(self, engine: Engine) -> None:
        self.entries: dict[Index, Entry] = {}
        self.version = engine.version  # of the last that is new
        self.deadlines: list[tuple[int, int, Index]] = []  # as the engine's
        self._engine = engine

    def add(self, key: Value, value: Value, expires_ns: int | None = None, revision: int = 0) -> None:
        """Add an entry; one that the engine has already stays the same. Of one key twice the last value stays."""
        index = index_of(key)
        twice = self.entries.get(index)
        if twice is not None and twice.version > self._engine.version:
            self._put(index, Entry(key, value, expires_ns, twice.version, None, revision))
            return
        found = self._engine.entries.get(index)
        if found is None or found.expires_ns != expires_ns or not same(found.value, value):
            self.version += 1
            found = Entry(key, value, expires_ns, self.version)
        found.revision = revision
        self._put(index, found)

    def add_all(self, pairs: Iterable[tuple[Value, Value]]) -> None:
        if self._engine.entries:
            for key, value in pairs:
                self.add(key, value)
            return
        entries = self.entries
        version = self.version
        for key, value in pairs:
            version += 1
            entries[key if type(key) is str else sort_key(key)] = Entry(key, value, None, version)
        self.version = version

    def _put(self, index: Index, entry: Entry) -> None:
        self.entries[index] = entry
        if entry.expires_ns is not None:
            self.deadlines.append((entry.expires_ns, entry.version, index))


class DurableContents:
    """Read-only view with the reading methods of ``Engine``; leaves out its latest changes, ``without``, in order."""

    def __init__(self, engine: Engine, without: Sequence[Change]) -> None:
        self._engine = engine
        self._without = without
        self._before: dict[Index, Entry | None] = {index_of(each.key): each.before for each in reversed(without)}

    def get(self, key: Value) -> Value:
        index = index_of(key)
        entry = self._before[index] if index in self._before else self._engine.find(key)
        if entry is None:
            raise NoSuchKey(f"nothing is stored under {key!r}")
        return entry.value

    def get_index(self, key: Value, index: Value) -> Value:
        return operations.retrieve(self.get(key), index)

    def exists(self, key: Value) -> bool:
        index = index_of(key)
        return self._before[index] is not None if index in self._before else self._engine.exists(key)

    def keys(self) -> list[Value]:
        return [entry.key for entry in self._engine.frozen(self._without)]
