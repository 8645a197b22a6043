"""Which key an endpoint has, by the word of those that have admitted it.

Where peers have certificates, every endpoint tells in its link state with which key each of its neighbours came. So
whoever admits somebody knows how others know that id, and refuses it with another key: what claims to come from an
endpoint is checked where it enters the mesh. Nobody signs a link state, so this is as true as those who tell it:

- A word counts only on a link that both ends tell of. Whoever claims to be beside somebody has to be named by it.
- Neighbours of an endpoint may differ. Each *key* of theirs has one vote, as the endpoint itself tells those keys:
  however many ids somebody takes with one certificate, it has one. A key is refused if another one has more votes. So
  one liar among the neighbours can neither lock the endpoint out nor let somebody else in, as long as two others, with
  keys of their own, say what they saw; with one other it stands one to one, and both are admitted. A liar that is the
  only neighbour is believed: nothing tells it from one that is honest.
- What we saw ourselves is not voted on: beside us an endpoint has the key that it has shown.
- A certificate that names the id is proof, which no word outweighs: its owner is admitted everywhere. This is what
  protects an id while nobody uses it; else whoever is first has it.
- What is linked stays linked. Where two with one id and two keys were admitted before anybody could know, as in the two
  halves of a network that was split, each stays where it is and is believed there, as of two places that tell of one
  endpoint the one that was known first is (``link_states``); further links each finds in its own half alone.

Endpoints that share a certificate are not told apart, and without certificates nothing is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from chappe.mesh.link_states import KnownEndpoint


def attested(endpoint: bytes, known: Mapping[bytes, KnownEndpoint], present: Collection[bytes]) -> dict[bytes, int]:
    """The keys of an endpoint by the word of its neighbours in reach, and how many votes each has."""
    state = known.get(endpoint)
    votes: dict[bytes, set[bytes]] = {}
    for neighbour in () if state is None else state.state.neighbours:
        other = known.get(neighbour.id)
        if neighbour.original or other is None or neighbour.id not in present or endpoint not in other.chappe:
            continue
        told = next(each.key for each in other.state.neighbours if each.id == endpoint)
        if told:
            votes.setdefault(told, set()).add(neighbour.key)
    return {key: len(voters) for key, voters in votes.items()}


def is_foreign(key: bytes, votes: Mapping[bytes, int]) -> bool:
    """Whether another key has more votes."""
    return max(votes.values(), default=0) > votes.get(key, 0)
