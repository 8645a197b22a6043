"""Partitions are shared among the members of a group.

Every member computes this of the same facts and comes to the same result, so nobody has to lead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from chappe.data.topic import Filter
from chappe.log.sources import Key


def assign(
    wants: Mapping[str, Sequence[Filter]], partitions: Iterable[Key], owners: Mapping[Key, str]
) -> dict[Key, str]:
    """Share partitions among members: as evenly as their topics let them, and with as few moves as that takes.

    Args:
        wants: The topics of each member.
        partitions: All that the group reads.
        owners: Who has which partition so far.

    Returns:
        The member for each partition that anybody wants.
    """
    able: dict[str, list[str]] = {}
    has: dict[str, dict[str, list[Key]]] = {
        member: {} for member in wants
    }  # by topic, too: one that wants it may take it
    loads = dict.fromkeys(wants, 0)
    found: dict[Key, str] = {}

    def give(key: Key, member: str) -> None:
        found[key] = member
        loads[member] += 1
        has[member].setdefault(key[0], []).append(key)

    ownerless: list[Key] = []
    for key in sorted(partitions):
        topic = key[0]
        if topic not in able:
            able[topic] = sorted(member for member, filters in wants.items() if any(f.matches(topic) for f in filters))
        owner = owners.get(key)
        if owner in able[topic]:
            give(key, owner)
        elif able[topic]:
            ownerless.append(key)
    for key in ownerless:
        give(key, min(able[key[0]], key=lambda member: (loads[member], member)))
    while (move := _move(able, has, loads)) is not None:
        giver, topic, taker = move
        key = has[giver][topic].pop()
        if not has[giver][topic]:
            del has[giver][topic]
        loads[giver] -= 1
        give(key, taker)
    return found


def _move(
    able: Mapping[str, list[str]], has: Mapping[str, Mapping[str, list[Key]]], loads: Mapping[str, int]
) -> tuple[str, str, str] | None:
    """A move that makes loads more even: who gives, of which topic, who takes; None if there is none."""
    least = min(loads.values(), default=0)
    for giver in sorted(loads, key=lambda member: (-loads[member], member)):
        if loads[giver] < least + 2:
            return None
        for topic in sorted(has[giver]):
            taker = min(able[topic], key=lambda member: (loads[member], member))
            if loads[giver] >= loads[taker] + 2:
                return giver, topic, taker
    return None
