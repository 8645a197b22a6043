"""One member of a consumer group: who else is there, what it reads of the partitions, how far it is.

Once a second it sends a beat to every store (``queries.GroupBeat``) and hears of the others. All members compute the
same shares (``assignment``). One that has too much lets go of it when its program next asks for records, after it has
committed; one that has too little claims what is free, and has it once every store that answers has granted it. What a
store does not know yet of its partitions is in the next beat to that store.

It has its partitions as long as stores hear of it: ``lease`` is a session after the last beat that one has answered
was sent. A member that was paused beyond that hands on nothing more until stores have confirmed what is still its own.

Source: chappe's own. Kafka's groups have a coordinator that decides; here stores keep words and grant what is free.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from msgspec.structs import replace

from chappe.core import Ask, Clock, Effect, Report
from chappe.data.topic import Filter, encode_topic
from chappe.defaults import GROUP_BEAT_S, GROUP_PAGE, GROUP_RELEASE_S, GROUP_SESSION_S
from chappe.log.events import GroupMoved, GroupRefused
from chappe.log.groups.assignment import assign
from chappe.log.guard import DENIED
from chappe.log.queries import (
    FENCED,
    UNKNOWN,
    Answer,
    ErrorAnswer,
    GroupAnswer,
    GroupBeat,
    GroupCrew,
    GroupRow,
    filters_of,
)
from chappe.log.sources import ANSWER_S, Key

SOON_S: Final = 0.02  # what changes within this time goes with one beat
TICKETS: Final = 1 << 31  # numbers of its questions begin here: those below are of the consumer that it belongs to
STRANGE_S: Final = 30.0  # a store that has never answered, or not as it should, is asked again so much later
NOWHERE: Final = -1  # no position is committed


@dataclass(frozen=True, slots=True)
class GroupChange:
    """Partitions that come, with their positions, that are to be let go of, and that are lost."""

    assigned: Mapping[Key, int]
    revoked: tuple[Key, ...]
    lost: tuple[Key, ...]


@dataclass(slots=True)
class _ToldStore:
    """One store: what it was told, and has told."""

    endpoint: str
    ticket: int = 0  # of the question under way
    sent_at: float = -math.inf
    said: dict[Key, tuple[int, int]] = field(default_factory=dict)  # epoch and serial of rows in that question
    asked: tuple[Key, ...] = ()  # places of its claims
    told: dict[Key, tuple[int, int]] = field(default_factory=dict)  # ... that it has on disk
    table: str = ""
    since: int = 0
    crew_version: int = 0
    crew: list[GroupCrew] = field(default_factory=list)
    whole: bool = False  # it has told all that it knows
    down_until: float = -math.inf
    reason: str = ""  # why it does not do what it should, as it said last


@dataclass(slots=True)
class _PartitionClaim:
    row: GroupRow
    granted: set[str] = field(default_factory=set)


class GroupMember:
    """The state of one member.

    Args:
        member: Its lasting name, or its life where it has none.
        name: For people.
        filters: The topics that it wants.
        session_s: Silent for so long it is dead.
    """

    def __init__(
        self,
        group: str,
        member: str,
        life: str,
        name: str,
        filters: Iterable[Filter],
        *,
        clock: Clock,
        session_s: float = GROUP_SESSION_S,
    ) -> None:
        self.group = group
        self.member = member
        self._life = life
        self._name = name
        self._filters = list(filters)
        self._clock = clock
        self._session_s = session_s
        self._beat_s = min(GROUP_BEAT_S, session_s / 3)
        self._born_us = clock.wall_ns() // 1000
        self._stores: dict[str, _ToldStore] = {}
        self._by_ticket: dict[int, str] = {}
        self._last_ticket = TICKETS
        self._rows: dict[Key, GroupRow] = {}  # of all stores, those of the largest rank
        self._floor = 0
        self._partitions: dict[Key, None] = {}
        self._held: dict[Key, GroupRow] = {}  # what is ours: the rows as stores shall have them
        self._claims: dict[Key, _PartitionClaim] = {}
        self._let_go: dict[Key, GroupRow] = {}  # what every store is still to be told of
        self._revoked: dict[Key, float] = {}  # to be let go of, and since when
        self._assigned: dict[Key, None] = {}  # which the program is to be told of
        self._lost: dict[Key, None] = {}
        self._beat_at = -math.inf
        self._stale = True  # something that shares depend on has changed since they were computed
        self._shares: dict[Key, str] | None = None
        self._claims_from = -math.inf  # nothing is claimed before: somebody else had a partition
        self._leaving = False
        self.lease = -math.inf
        self.fenced = ""  # why this life is over

    # -- the consumer that it belongs to ----------------------------------------------------------------------

    @property
    def mine(self) -> Mapping[Key, object]:
        """The partitions that it has, those included that it shall let go of."""
        return self._held

    @property
    def pending(self) -> bool:
        """True if ``change`` has something to tell."""
        return bool(self._assigned or self._lost or self._revoked)

    @property
    def settled(self) -> bool:
        """True if all known stores were heard, and it has just what it shall have."""
        if self._shares is None or self._stale or self._claims or self.pending:
            return False
        return all(member != self.member or key in self._held for key, member in self._shares.items())

    @property
    def members(self) -> list[GroupCrew]:
        """The members that stores hear of, this one included once they do."""
        found = {each.life: each for store in self._stores.values() for each in store.crew}
        return sorted(found.values(), key=lambda each: (each.member, each.life))

    def holds(self, now: float) -> bool:
        """True if what it has is its own for sure."""
        return now < self.lease

    def seen(self, key: Key, now: float) -> bool:
        """A partition is there; returns whether it is ours, and the program knows that."""
        if key not in self._partitions:
            self._partitions[key] = None
            self._stale = True
            self._soon(now)
        return key in self._held and key not in self._assigned

    def want(self, filters: Iterable[Filter], now: float) -> None:
        """Want other topics from now on."""
        self._filters = list(filters)
        for key in [key for key in self._partitions if not self._wants(key)]:
            del self._partitions[key]
        self._stale = True
        self._soon(now)

    def change(self, now: float) -> GroupChange:
        """Return the changes since the last call; ``let_go`` must follow for revoked partitions."""
        unheard = [key for key in self._revoked if key in self._assigned]
        for key in unheard:
            del self._assigned[key]
        self.let_go(unheard, now)
        lost = tuple(self._lost)
        assigned = {key: self._held[key].offset for key in self._assigned}
        self._assigned, self._lost = {}, {}
        return GroupChange(assigned, tuple(self._revoked), lost)

    def commit(self, positions: Mapping[Key, int], now: float) -> None:
        """Note how far partitions of ours are read; ``committed`` tells when stores have it."""
        at_us = self._clock.wall_ns() // 1000
        for key, offset in positions.items():
            held = self._held[key]
            if held.offset != offset:
                self._held[key] = replace(held, serial=held.serial + 1, offset=offset, at_us=at_us)
                self._soon(now)

    def committed(self, positions: Iterable[Key]) -> bool:
        """True if every store that answers has what was committed of these, and one at least."""
        able = [each for each in self._stores.values() if each.down_until == -math.inf]
        return bool(able) and all(
            store.told.get(key, (0, 0)) >= (held.epoch, held.serial)
            for store in able
            for key in positions
            if (held := self._held.get(key)) is not None
        )

    def positions(self) -> dict[Key, int]:
        """Return what is committed by anybody, as far as stores have told."""
        rows = {**self._rows, **self._held}
        return {key: row.offset for key, row in rows.items() if row.epoch > self._floor and row.offset != NOWHERE}

    def let_go(self, keys: Iterable[Key], now: float) -> None:
        """The program is done with partitions: others may have them, from what is committed on."""
        for key in keys:
            self._revoked.pop(key, None)
            held = self._held.pop(key, None)
            if held is not None:
                self._free(key, held)
        self._stale = True
        self._soon(now)

    def leave(self, now: float) -> list[Effect]:
        """Send each store a last beat; free partitions unless the name is lasting. ``left`` tells when all have it."""
        self._leaving = True
        if self.member == self._life:
            self.let_go(list(self._held), now)
        self._claims.clear()
        for store in self._stores.values():
            self._by_ticket.pop(store.ticket, None)
            store.ticket, store.down_until = 0, -math.inf  # one whose disk refuses hears it, too
        return self._beats(now)

    @property
    def left(self) -> bool:
        """True if every store that answers has the last word."""
        return not any(each.ticket for each in self._stores.values())

    # -- stores -----------------------------------------------------------------------------------------------

    def store_found(self, address: str, endpoint: str, now: float) -> None:
        """A store says where it answers."""
        known = self._stores.get(address)
        if known is None or known.endpoint != endpoint:
            self._store_over(address)
            self._stores[address] = _ToldStore(endpoint)
            self._stale = True
            self._soon(now)

    def store_gone(self, address: str) -> None:
        """A store has left."""
        self._store_over(address)
        if self._stores.pop(address, None) is not None:
            self._stale = True

    def _store_over(self, address: str) -> None:
        store = self._stores.get(address)
        if store is not None:
            self._by_ticket.pop(store.ticket, None)

    def handle_answer(self, ticket: int, answer: Answer, now: float) -> list[Effect]:
        """A store answered a beat."""
        address = self._by_ticket.pop(ticket, None)
        store = None if address is None else self._stores.get(address)
        if address is None or store is None:
            return []
        store.ticket = 0
        if isinstance(answer, ErrorAnswer):
            return self._refused(store, answer, now)
        if not isinstance(answer, GroupAnswer):
            store.down_until = now + STRANGE_S
            return []
        store.down_until, store.reason = -math.inf, ""
        self.lease = max(self.lease, store.sent_at + self._session_s)
        self._told(store, answer)
        self._floor = max(self._floor, answer.floor)
        for row in answer.rows:
            self._heard(row, now)
        refused = {store.asked[place] for place in answer.refused if place < len(store.asked)}
        for key in store.asked:
            claim = self._claims.get(key)
            if claim is not None and key not in refused:
                claim.granted.add(address)
            elif claim is not None:
                self._give_up(key, claim, now)
        if answer.more:
            self._soon(now)
        return self._go_on(now)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send beats, and pass over stores that do not answer."""
        for address, store in self._stores.items():
            if store.ticket and now >= store.sent_at + ANSWER_S:
                self._by_ticket.pop(store.ticket, None)
                store.ticket, store.down_until = 0, now + (ANSWER_S if store.table else STRANGE_S)
                store.told.clear()  # it may be another life of it that answers next
                self._stale = True
                for claim in self._claims.values():
                    claim.granted.discard(address)
        for key, since in list(self._revoked.items()):
            if now >= since + GROUP_RELEASE_S:
                self._free(key, self._held[key])
                self._lose(key)
        actions = self._go_on(now)
        return actions + self._beats(now) if now >= self._beat_at else actions

    def next_timeout(self) -> float:
        late = min((each.sent_at + ANSWER_S for each in self._stores.values() if each.ticket), default=math.inf)
        return min(self._beat_at if self._stores else math.inf, late) if not self.fenced else math.inf

    def invariants(self) -> list[str]:
        """Return each violated invariant as a sentence."""
        found = [f"{key} is claimed, and ours" for key in self._claims if key in self._held]
        found += [f"{key} is to be let go of, and not ours" for key in self._revoked if key not in self._held]
        found += [f"{key} is to be assigned, and not ours" for key in self._assigned if key not in self._held]
        return found

    # -- inside -----------------------------------------------------------------------------------------------

    def _wants(self, key: Key) -> bool:
        return any(each.matches(key[0]) for each in self._filters)

    def _soon(self, now: float) -> None:
        self._beat_at = min(self._beat_at, now + SOON_S)

    def _refused(self, store: _ToldStore, answer: ErrorAnswer, now: float) -> list[Effect]:
        if answer.kind == FENCED:
            self.fenced = answer.text
            for key in list(self._held):
                self._lose(key)
            return [Report(GroupMoved(self.group))]
        store.down_until = now + (STRANGE_S if answer.kind in (UNKNOWN, DENIED) else ANSWER_S)
        if store.reason == answer.text:
            return []
        store.reason = answer.text
        return [Report(GroupRefused(self.group, store.endpoint, answer.text))]

    def _told(self, store: _ToldStore, answer: GroupAnswer) -> None:
        if store.table != answer.table:
            store.table = answer.table
            store.told.clear()
            store.crew = []
            self._stale = True
        for key, said in store.said.items():
            store.told[key] = max(said, store.told.get(key, (0, 0)))
        store.since, store.crew_version, store.whole = answer.since, answer.crew, not answer.more
        if answer.members is not None:
            store.crew = answer.members
            self._stale = True
        for key in [key for key in store.said if key in self._let_go]:
            row = self._let_go[key]
            if all(each.told.get(key, (0, -1)) >= (row.epoch, row.serial) for each in self._stores.values()):
                del self._let_go[key]

    def _heard(self, row: GroupRow, now: float) -> None:
        """A store has a row: it counts if its rank is larger than what is known."""
        key = row.key
        if not self._wants(key):
            return
        if key not in self._partitions:
            self._partitions[key] = None
            self._stale = True
        known = self._rows.get(key)
        if known is None or row.rank > known.rank:
            self._rows[key] = row
            if known is None or (known.epoch, known.owner, known.free) != (row.epoch, row.owner, row.free):
                self._stale = True
        for ours in (self._held.get(key), None if key not in self._claims else self._claims[key].row):
            if ours is not None and (row.epoch, row.owner) > (ours.epoch, ours.owner):
                self._claims.pop(key, None)
                if key in self._held:
                    self._lose(key)
        if row.owner == self._life and not row.free and key not in self._held and key not in self._claims:
            known = self._rows[key]  # a store that was away has missed that we let go of it
            self._free(key, known if known.owner == self._life else row)
            self._soon(now)

    def _free(self, key: Key, row: GroupRow) -> None:
        """Have all stores know that we let go of a partition."""
        self._let_go[key] = freed = replace(row, serial=row.serial + 1, free=True)
        if key not in self._rows or freed.rank > self._rows[key].rank:
            self._rows[key] = freed

    def _lose(self, key: Key) -> None:
        """A partition is no longer ours, whatever the program is doing with it."""
        self._held.pop(key, None)
        self._revoked.pop(key, None)
        if self._assigned.pop(key, 0) == 0:  # else the program has never heard of it
            self._lost[key] = None
        self._stale = True

    def _give_up(self, key: Key, claim: _PartitionClaim, now: float) -> None:
        """Somebody else has a partition at one of the stores: take the claim back where it was granted."""
        del self._claims[key]
        if claim.granted:
            self._free(key, claim.row)
            self._soon(now)
        self._claims_from = now + self._beat_s
        self._stale = True

    def _go_on(self, now: float) -> list[Effect]:
        """Take what was granted, and compute shares anew if anything changed."""
        if self._leaving:
            return []
        before = self.pending
        needed = [address for address, each in self._stores.items() if now >= each.down_until]
        for key, claim in list(self._claims.items()):
            if claim.granted and claim.granted.issuperset(needed):
                del self._claims[key]
                self._held[key] = claim.row
                self._rows[key] = claim.row
                for address in claim.granted:
                    if address in self._stores:
                        self._stores[address].told[key] = (claim.row.epoch, claim.row.serial)
                self._let_go.pop(key, None)
                self._assigned[key] = None
        whole = bool(needed) and all(self._stores[address].whole for address in needed)
        if self._stale and whole and not self.fenced:
            self._decide(now)
        return [Report(GroupMoved(self.group))] if self.pending and not before else []

    def _decide(self, now: float) -> None:
        """Compute everybody's share; claim and let go accordingly."""
        crew = {each.member: each for each in self.members}
        lives = {each.life for each in crew.values()}
        wants = {member: filters_of(each.topics) for member, each in crew.items()}
        wants[self.member] = self._filters
        owners: dict[Key, str] = {}
        for key, row in self._rows.items():
            if row.epoch > self._floor and not row.free and (row.owner in lives or row.member in wants):
                owners[key] = row.member
        self._stale = False
        self._shares = assign(wants, self._partitions, owners)
        for key in self._held:
            if self._shares.get(key) != self.member:
                self._revoked.setdefault(key, now)
            else:
                self._revoked.pop(key, None)
        for key, member in self._shares.items():
            if member != self.member or key in self._held or key in self._claims:
                continue
            if owners.get(key, self.member) != self.member:
                continue  # it is let go of first
            if now < self._claims_from:
                self._stale = True
                continue
            self._claim(key, self._rows.get(key))
            self._soon(now)

    def _claim(self, key: Key, row: GroupRow | None) -> None:
        epoch = max(self._floor, 0 if row is None else row.epoch) + 1
        offset = NOWHERE if row is None or row.epoch <= self._floor else row.offset
        at_us = self._clock.wall_ns() // 1000
        self._claims[key] = _PartitionClaim(
            GroupRow(
                encode_topic(key[0]), encode_topic(key[1]), epoch, self._life, self.member, 0, False, offset, at_us
            )
        )

    def _beats(self, now: float) -> list[Effect]:
        self._beat_at = now + self._beat_s
        if self.fenced:
            return []
        return [
            self._beat(address, store, now)
            for address, store in self._stores.items()
            if not store.ticket and now >= store.down_until
        ]

    def _beat(self, address: str, store: _ToldStore, now: float) -> Effect:
        self._last_ticket += 1
        store.ticket, store.sent_at = self._last_ticket, now
        self._by_ticket[store.ticket] = address
        news = (
            (key, row)
            for key, row in (*self._let_go.items(), *((key, held) for key, held in self._held.items()))
            if store.told.get(key, (0, -1)) < (row.epoch, row.serial)
        )
        rows = dict(islice(news, GROUP_PAGE))
        store.said = {key: (row.epoch, row.serial) for key, row in rows.items()}
        store.asked = tuple(
            islice((key for key, each in self._claims.items() if address not in each.granted), GROUP_PAGE)
        )
        if len(rows) == GROUP_PAGE or len(store.asked) == GROUP_PAGE:
            self._soon(now)
        return Ask(
            store.endpoint,
            store.ticket,
            GroupBeat(
                self.group,
                self._life,
                self.member,
                self._name,
                [encode_topic(str(each)) for each in self._filters],
                self._born_us,
                int(self._session_s * 1000),
                store.table,
                store.since,
                store.crew_version,
                [self._claims[key].row for key in store.asked],
                list(rows.values()),
                self._leaving,
            ),
        )
