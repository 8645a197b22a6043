"""Loops that are closed by originals, which know neither ids nor a limit of hops.

An original passes on what it gets, to originals too. Where a chain of them leads from one of our links to another, each
message comes back as if it were published there, is sent out again, and so on for ever. Nobody can see such a chain;
what can be seen is that the same contents (topic and payload) come from one original shortly after they went to
another, or came from the mesh. Several different contents, or one content very often, are taken as evidence; the same
once or twice is nothing, since two programs may well publish the same. What was published here needs fewer copies: that
others publish just that, so often and at the same time, is much less likely. All copies of a content count together, on
whichever ways they come, for where there are several loops each brings its own.

Then the link to one of the two originals is *blocked*, as a spanning tree blocks a port, and tried again later.
"""

from __future__ import annotations

from collections import OrderedDict
from math import inf
from typing import Final

from chappe.defaults import (
    BLOCK_MAX_S,
    BLOCK_S,
    ECHO_CONTENTS,
    ECHO_DOUBTFUL,
    ECHO_OWN_REPEATS,
    ECHO_REPEATS,
    ECHO_S,
    ECHOES_MAX,
)
from chappe.mesh.messages import NOBODY

_UNSETTLED: Final = 4  # so many times more copies are evidence then
TOO_OFTEN: Final = b""  # no original: nothing is proven, but this copy is one too many
MESH: Final = NOBODY  # stands for all endpoints of chappe, as where a content was


class _Content:
    """The places of one content since ``since``, and how often it came from an original after it was elsewhere."""

    __slots__ = ("copies", "own", "places", "returns", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.places: set[bytes] = set()  # originals that it was sent to; MESH if it came from there
        self.returns: dict[tuple[bytes, bytes], int] = {}  # (place, original that it came from): how often
        self.copies = 0  # that came so, on all ways
        self.own = False  # it was published here


class Echoes:
    """Contents of the last ``ECHO_S`` seconds, at most ``ECHOES_MAX``, and the links that are blocked."""

    def __init__(self) -> None:
        self.due = inf  # when the next link that is blocked is to be tried again
        self._from = -inf  # from then on it is settled who speaks with whom
        self._contents: OrderedDict[int, _Content] = OrderedDict()
        self._pairs: dict[tuple[bytes, bytes], list[float]] = {}  # when a different content was an echo
        self._blocked: dict[bytes, tuple[float, bytes]] = {}  # original: until, and the other end of the loop
        self._pauses: dict[bytes, float] = {}  # original: how long it was blocked last

    def note(self, place: bytes, topic: bytes, payload: bytes, now: float, own: bool = False) -> None:
        """Note a message that is sent to the original ``place``, or is in the MESH; ``own`` if it is published here."""
        content = self._content(hash((topic, payload)), now)
        content.places.add(place)
        content.own = content.own or own

    def came(self, original: bytes, topic: bytes, payload: bytes, now: float) -> bytes | None:
        """Note a message of an original. If it proves a loop, return the original to block.

        Until it is settled who speaks with whom a loop is not proven so soon; ``TOO_OFTEN`` keeps it from growing.
        """
        verdict = None
        content = self._contents.get(hash((topic, payload)))
        if content is None or now - content.since > ECHO_S:
            return None
        places = sorted(content.places - {original})
        content.copies += bool(places)
        for place in places:
            pair = (place, original)
            count = content.returns[pair] = content.returns.get(pair, 0) + 1
            if self._is_evidence(pair, count, content, now):
                content.returns.clear()  # what is on its way still says nothing about others
                content.copies = 0
                return max(place, original)  # MESH is the smallest of all
            if content.since < self._from and count > ECHO_DOUBTFUL:
                verdict = TOO_OFTEN
        return verdict

    def block(self, original: bytes, others: bytes, now: float) -> float:
        """Cut ``original`` off because of a loop with ``others``; returns for how many seconds."""
        pause = min(BLOCK_MAX_S, 2 * self._pauses.get(original, BLOCK_S / 2))
        self._pauses[original] = pause
        self._blocked[original] = (now + pause, others)
        self._plan()
        self._pairs.clear()
        return pause

    def forget(self, now: float) -> None:
        """Forget the evidence after the links of our originals changed. Until all agree on their speakers, some
        messages come twice.

        So only what comes very often is evidence for a while. And a loop may be gone: links that are blocked are tried
        again when all agree.
        """
        self._from = now + ECHO_S
        self._pairs.clear()
        self._blocked = {each: (min(until, self._from), others) for each, (until, others) in self._blocked.items()}
        self._plan()

    def tick(self, now: float) -> list[bytes]:
        return self._unblock([each for each, (until, _) in self._blocked.items() if now >= until])

    def link_down(self, original: bytes) -> list[bytes]:
        """Note that the link to ``original`` is gone; return those that were blocked because of it."""
        self._blocked.pop(original, None)
        self._pauses.pop(original, None)
        return self._unblock([each for each, (_, other) in self._blocked.items() if other == original])

    def _unblock(self, originals: list[bytes]) -> list[bytes]:
        for each in originals:
            del self._blocked[each]
        self._plan()
        return originals

    def _plan(self) -> None:
        self.due = min([until for until, _ in self._blocked.values()], default=inf)

    def _content(self, key: int, now: float) -> _Content:
        contents = self._contents
        content = contents.get(key)
        if content is not None and now - content.since <= ECHO_S:
            return content
        made = contents[key] = _Content(now)
        contents.move_to_end(key)
        while len(contents) > ECHOES_MAX or now - next(iter(contents.values())).since > ECHO_S:
            contents.popitem(last=False)
        return made

    def _is_evidence(self, pair: tuple[bytes, bytes], count: int, content: _Content, now: float) -> bool:
        if content.since < self._from:
            return count > _UNSETTLED * ECHO_REPEATS
        if content.copies > (ECHO_OWN_REPEATS if content.own else ECHO_REPEATS):
            return True
        times = [each for each in self._pairs.get(pair, []) if now - each <= ECHO_S]
        if count == 1:
            times.append(now)
        self._pairs[pair] = times
        return len(times) >= ECHO_CONTENTS
