"""What a gateway asks of one domain for the other: prefixes, as few as say it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from chappe.defaults import GATEWAY_CHOSEN_BYTES_MAX, GATEWAY_CHOSEN_MAX
from chappe.errors import UsageError
from chappe.mesh.filters import NOTHING, Filter, matches, minimal

RESERVED: Final = b"<"  # topics of the mesh itself begin with it, those of data stores too: they never pass
# All topics but these. The empty prefix itself would cover what gateways announce: see ``announcement``.
_ALL: Final[Filter] = tuple([bytes((first,)) for first in range(256) if first != RESERVED[0]])


def as_chosen(prefixes: Iterable[bytes], domain: str) -> Filter:
    """The prefixes that a user chose to pass from a domain, as a filter; the empty one is all but reserved topics.

    Raises:
        UsageError: One is reserved, or there are too many.
    """
    found: set[bytes] = set()
    for each in prefixes:
        if each.startswith(RESERVED):
            raise UsageError(f"topics that begin with '<' are the mesh's own: {each.decode(errors='replace')!r} from"
                             f" domain {domain} cannot pass a gateway")  # fmt: skip
        found.update(_ALL if not each else (each,))
    chosen = minimal(found)
    if len(chosen) > GATEWAY_CHOSEN_MAX or sum(map(len, chosen)) > GATEWAY_CHOSEN_BYTES_MAX:
        raise UsageError(
            f"{len(chosen)} prefixes of domain {domain} are too many for a gateway: at most {GATEWAY_CHOSEN_MAX} of"
            f" {GATEWAY_CHOSEN_BYTES_MAX} bytes together; choose common prefixes instead"
        )
    return chosen


def summary(wanted: Filter, chosen: Filter, topics_max: int, bytes_max: int) -> Filter:
    """What of ``wanted`` may pass. Beyond the bounds those of ``chosen`` that anything of it is wanted under."""
    if not wanted or not chosen:
        return NOTHING
    inside = [each for each in wanted if matches(chosen, each)]
    covered = [each for each in chosen if matches(wanted, each)]
    found = minimal([*inside, *covered])
    if len(found) <= topics_max and sum(map(len, found)) <= bytes_max:
        return found
    return tuple([each for each in chosen if each in covered or any(topic.startswith(each) for topic in inside)])
