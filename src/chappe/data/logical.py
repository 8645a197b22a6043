"""Logical time: what came before what, without a clock.

A *Lamport timestamp* orders the states of one endpoint: each change has a higher one. A *vector timestamp* has one for
each endpoint, and orders pictures of the whole network: of two of them one is later, or each has seen something that
the other has not.

Source: Zeek Broker's ``lamport_timestamp.hh`` and ``alm/routing_table.hh``. Departures: a vector names its endpoints
instead of following a path, so that vectors of different ways can be compared; 0 is the time of what was never heard.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, Self

from chappe.errors import InvalidData, UnsupportedValue

TIME_MAX: Final = 2**64 - 1


class LamportTimestamp(int):
    """A logical time, 0 to 2**64-1. It is an ``int`` in JSON, and a ``uint64`` in Arrow.

    Raises:
        UnsupportedValue: The number is out of its bounds.
    """

    __slots__ = ()

    def __new__(cls, value: int = 0) -> Self:  # noqa: D102
        if not 0 <= value <= TIME_MAX:
            raise UnsupportedValue(f"a logical time is 0 to 2**64-1, not {value}")
        return int.__new__(cls, value)

    def incremented(self) -> LamportTimestamp:
        """The time of the next change."""
        return LamportTimestamp(int(self) + 1)

    def merged(self, other: int) -> LamportTimestamp:
        """The later one: behind both lies what is incremented then."""
        return self if self >= other else LamportTimestamp(other)

    def __repr__(self) -> str:
        return f"LamportTimestamp({int(self)})"

    def __str__(self) -> str:
        return int.__repr__(self)


NEVER: Final = LamportTimestamp()  # the time of what was never heard


class VectorTimestamp(Mapping[str, LamportTimestamp]):
    """The logical time of each endpoint, by its id; any other has 0. In Arrow it is a map of string to uint64.

    ``one <= two`` if no endpoint has a later time in ``one``; neither ``one <= two`` nor ``two <= one`` if each has
    seen something that the other has not (``concurrent``). It does not change, and can be a key.
    """

    __slots__ = ("_times",)

    def __init__(self, times: Mapping[str, int] | None = None) -> None:
        given = {} if times is None else times
        self._times = {each: LamportTimestamp(given[each]) for each in sorted(given) if given[each]}

    def __getitem__(self, endpoint: str) -> LamportTimestamp:
        return self._times[endpoint]

    def __iter__(self) -> Iterator[str]:
        return iter(self._times)

    def __len__(self) -> int:
        return len(self._times)

    def of(self, endpoint: str) -> LamportTimestamp:
        """The time of an endpoint, 0 if it is not in it."""
        return self._times.get(endpoint, NEVER)

    def incremented(self, endpoint: str) -> VectorTimestamp:
        """The time behind a change of one endpoint."""
        return VectorTimestamp({**self._times, endpoint: self.of(endpoint).incremented()})

    def merged(self, other: VectorTimestamp) -> VectorTimestamp:
        """The earliest time that is not before either."""
        return VectorTimestamp({each: self.of(each).merged(other.of(each)) for each in {**self._times, **other._times}})

    def concurrent(self, other: VectorTimestamp) -> bool:
        """True if each has seen something that the other has not."""
        return not self <= other and not other <= self

    def __le__(self, other: VectorTimestamp) -> bool:
        return all(time <= other.of(each) for each, time in self._times.items())

    def __ge__(self, other: VectorTimestamp) -> bool:
        return other <= self

    def __lt__(self, other: VectorTimestamp) -> bool:
        return self <= other and self != other

    def __gt__(self, other: VectorTimestamp) -> bool:
        return other < self

    def __eq__(self, other: object) -> bool:
        return self._times == other._times if isinstance(other, VectorTimestamp) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self._times.items()))

    def __repr__(self) -> str:
        return f"VectorTimestamp({ {each: int(time) for each, time in self._times.items()} })"

    def to_json(self) -> dict[str, int]:
        """A form for ``json.dumps``: times by ids, in their order."""
        return {each: int(time) for each, time in self._times.items()}

    @classmethod
    def from_json(cls, found: object) -> Self:
        """Read the result of ``to_json``, or the pairs of a row of Arrow. Raises InvalidData for anything else."""
        entries = dict(found) if isinstance(found, list) and all(isinstance(each, tuple) for each in found) else found
        if not isinstance(entries, dict) or not all(isinstance(each, str) for each in entries):
            raise InvalidData("a vector timestamp is an object of times by ids of endpoints")
        for time in entries.values():
            if type(time) is not int or not 0 <= time <= TIME_MAX:
                raise InvalidData(f"a logical time is a number from 0 to 2**64-1, not {time!r:.60}")
        return cls(entries)
