"""The containers of the original bindings: changeable, taking ``Data`` and handing out ``Element``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Generic, SupportsIndex, TypeVar

from chappe.data.order import SortKey, sort_key
from chappe.data.values import Set as HeldSet
from chappe.data.values import Table as HeldTable
from chappe.data.values import Value

if TYPE_CHECKING:
    from chappe.compat.broker.data import Element


T = TypeVar("T")


def _held(data: object) -> Value:
    from chappe.compat.broker.data import Element

    if not isinstance(data, Element):
        raise TypeError(f"a container holds Data, not a {type(data).__name__}: use Data(...)")
    return data._value


def _wrapped(value: Value) -> Element:
    from chappe.compat.broker.data import Element

    return Element._of(value)


class Set:
    """A set of ``Data``, in their order."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, members: Iterable[Element] = ()) -> None:
        self._members: dict[SortKey, Value] = {}
        for each in members:
            self.add(each)

    def add(self, member: Element) -> None:
        """Add it, if it is not there."""
        value = _held(member)
        self._members.setdefault(sort_key(value), value)

    def remove(self, member: Element) -> None:
        """Remove it, if it is there."""
        self._members.pop(sort_key(_held(member)), None)

    def clear(self) -> None:
        """Remove all."""
        self._members.clear()

    def _value(self) -> HeldSet:
        return HeldSet(self._members.values())

    def __contains__(self, member: object) -> bool:
        from chappe.compat.broker.data import Element

        return isinstance(member, Element) and sort_key(member._value) in self._members

    def __iter__(self) -> Iterator[Element]:
        return map(_wrapped, self._value())

    def __len__(self) -> int:
        return len(self._members)

    def __eq__(self, other: object) -> bool:
        return self._members.keys() == other._members.keys() if isinstance(other, Set) else NotImplemented

    def __repr__(self) -> str:
        return f"Set{{{', '.join(map(str, self))}}}"


class _View(Generic[T]):
    """Keys, values or items of a table, as they are now and later."""

    def __init__(self, table: Table, made: Callable[[Value, Value], T]) -> None:
        self._table = table
        self._made = made

    def __iter__(self) -> Iterator[T]:
        return (self._made(key, value) for key, value in self._table._value().pairs())

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, thing: object) -> bool:
        return any(each == thing for each in self)


class Table:
    """A table of ``Data`` by ``Data``, in the order of its keys."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self._entries: dict[SortKey, tuple[Value, Value]] = {}

    def keys(self) -> _View[Element]:
        """All keys in order."""
        return _View(self, lambda key, value: _wrapped(key))

    def values(self) -> _View[Element]:
        """All values in the order of their keys."""
        return _View(self, lambda key, value: _wrapped(value))

    def items(self) -> _View[tuple[Element, Element]]:
        """All (key, value) in the order of keys."""
        return _View(self, lambda key, value: (_wrapped(key), _wrapped(value)))

    def _value(self) -> HeldTable:
        return HeldTable(self._entries.values())

    def __getitem__(self, key: Element) -> Element:
        try:
            return _wrapped(self._entries[sort_key(_held(key))][1])
        except KeyError:
            raise KeyError(str(key)) from None

    def __setitem__(self, key: Element, value: Element) -> None:
        held = _held(key)
        self._entries[sort_key(held)] = (held, _held(value))

    def __delitem__(self, key: Element) -> None:
        try:
            del self._entries[sort_key(_held(key))]
        except KeyError:
            raise KeyError(str(key)) from None

    def __contains__(self, key: object) -> bool:
        from chappe.compat.broker.data import Element

        return isinstance(key, Element) and sort_key(key._value) in self._entries

    def __iter__(self) -> Iterator[Element]:
        return (_wrapped(key) for key, _ in self._value().pairs())

    def __len__(self) -> int:
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self._value() == other._value() if isinstance(other, Table) else NotImplemented

    def __repr__(self) -> str:
        shown = (f"{_wrapped(key)}: {_wrapped(value)}" for key, value in self._value().pairs())
        return f"Table{{{', '.join(shown)}}}"


class Vector(list["Element"]):
    """A list of ``Data``."""

    __hash__ = None

    def __init__(self, items: Iterable[Element] = ()) -> None:
        super().__init__(map(_checked, items))

    def append(self, item: Element) -> None:
        """Add it behind the others."""
        super().append(_checked(item))

    def insert(self, place: SupportsIndex, item: Element) -> None:
        """Add it before what stands at ``place``."""
        super().insert(place, _checked(item))

    def extend(self, items: Iterable[Element]) -> None:
        """Add them behind the others."""
        super().extend(map(_checked, items))

    def _value(self) -> tuple[Value, ...]:
        return tuple([_held(each) for each in self])

    def __repr__(self) -> str:
        return f"Vector[{', '.join(map(str, self))}]"

    __str__ = __repr__


def _checked(item: Element) -> Element:
    _held(item)
    return item


def set_of(value: AbstractSet[Value]) -> Set:
    """A changeable set with these members."""
    return Set(map(_wrapped, value))


def table_of(value: HeldTable) -> Table:
    """A changeable table with these entries."""
    made = Table()
    for key, each in value.pairs():
        made[_wrapped(key)] = _wrapped(each)
    return made


def vector_of(value: Iterable[Value]) -> Vector:
    """A changeable vector with these items."""
    return Vector(map(_wrapped, value))
