"""Which publications came before: each is taken once, on however many ways it comes.

Every publication has an origin and a number; the numbers of an origin rise, with holes where nobody here wanted one.
Of each origin the last ones are remembered, in two generations. What is not newer than the newest number of a dropped
generation is refused: it may have come before. So nothing is taken twice, ever, and memory is bounded; what is lost by
it came more than ``seen_max`` publications of its origin later than others.

Or somebody on the way has used numbers that are still to come. So the origin is told (``losses``), and goes on above.
"""

from __future__ import annotations

from chappe.defaults import ENDPOINTS_MAX
from chappe.limits import MESH_LIMITS, MeshLimits


class _Origin:
    """What came from one origin."""

    __slots__ = ("floor", "old", "young")

    def __init__(self) -> None:
        self.young: set[int] = set()
        self.old: set[int] = set()
        self.floor = -1  # numbers up to this are refused

    def rotate(self) -> int:
        """Begin a new generation; returns how many numbers were dropped."""
        dropped = len(self.old)
        if self.old:
            self.floor = max(self.floor, *self.old)  # some of them may have come before the floor rose
        self.old, self.young = self.young, set()
        return dropped


class SeenMessages:
    """What came to the endpoint ``own``. ``late`` counts publications refused though they are not remembered."""

    def __init__(self, own: bytes, limits: MeshLimits = MESH_LIMITS) -> None:
        self._limits = limits
        self.late = 0
        self.late_of: dict[bytes, None] = {}  # origins of such ones
        self.size = 0  # numbers remembered
        self._own = own
        self._origins: dict[bytes, _Origin] = {}
        self._add(own).floor = 2**64  # what was published here and comes back is never new

    def is_new(self, origin: bytes, sequence: int) -> bool:
        """Note a publication; False if it was noted before, or is too old to tell."""
        known = self._origins.get(origin)
        if known is None:
            known = self._add(origin)
        young = known.young
        if sequence in young or sequence in known.old:
            return False
        if sequence <= known.floor:
            self.late += 1
            if origin != self._own:
                self.late_of[origin] = None
            return False
        young.add(sequence)
        self.size += 1
        if len(young) >= self._limits.seen_max or self.size >= self._limits.seen_total_max:
            self._rotate(known)
        return True

    def is_new_run(self, origin: bytes, numbers: range) -> bool:
        """Note publications with consecutive numbers if all of them are new beyond doubt; False if nothing was noted.

        Then each is to be looked at with ``is_new``.
        """
        known = self._origins.get(origin)
        if known is None or numbers[0] <= known.floor:
            return False
        young, count = known.young, len(numbers)
        room = len(young) + count < self._limits.seen_max and self.size + count < self._limits.seen_total_max
        if not room or not young.isdisjoint(numbers) or not known.old.isdisjoint(numbers):
            return False
        young.update(numbers)
        self.size += count
        return True

    def take_late(self) -> dict[bytes, int]:
        """Remove and return the origins in ``late_of`` that are known still, with the highest number of each."""
        origins, self.late_of = self.late_of, {}
        known = {each: self._origins[each] for each in origins if each in self._origins}
        return {each: max([found.floor, *found.old, *found.young]) for each, found in known.items()}

    def forget(self, origin: bytes) -> None:
        """The origin has been gone for so long that nothing of it is on its way."""
        known = self._origins.pop(origin, None)
        if known is not None:
            self.size -= len(known.young) + len(known.old)

    def invariants(self) -> list[str]:
        """What is wrong with its own state, each a part of a sentence; nothing, unless there is a defect."""
        size = sum([len(each.young) + len(each.old) for each in self._origins.values()])
        right = self.size == size <= self._limits.seen_total_max
        return [] if right else [f"{self.size} numbers are counted, {size} remembered"]

    def _add(self, origin: bytes) -> _Origin:
        if len(self._origins) >= ENDPOINTS_MAX:
            self.forget(next(each for each in self._origins if each != self._own))
        known = self._origins[origin] = _Origin()
        return known

    def _rotate(self, full: _Origin) -> None:
        self.size -= full.rotate()
        if self.size >= self._limits.seen_total_max:  # many origins: all of them remember less
            self.size -= sum([each.rotate() for each in self._origins.values()])
