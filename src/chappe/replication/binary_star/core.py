"""One server of a pair: whether it serves clients, in which term, and what it may confirm to them.

Source: Binary Star, ZeroMQ Guide, chapter 4, and the ``bstar`` class of its programs: the same states, sent as the same
digits. Departures, between ends of chappe:

* A server becomes active in a **term** of its own: odd ones are the primary's, even ones the backup's, each higher than
  all that it knows of. An active server that hears of a higher one steps down; the original aborts. Both servers
  without a disk, restarted together, begin again at 1: a term is told apart from that one by the server's life.
* Two that hear each other settle it by what their copies are worth (``Record``): the better one asks, the other agrees.
* Two hear each other while each echoes the other's beats. A link that carries only one way counts as none.
* The active server is **paired** while the partner has all that it confirmed, and then confirms nothing that the
  partner does not have; or **alone**. A passive server that was not paired when the other fell silent does not take
  over. A server that gives up a partner that is there confirms nothing before the partner has said that it knows.
* A server that was paused itself has missed beats, rather than its partner: it waits again, serves nobody meanwhile,
  and is taken to be in step only when the partner says so anew. An active server that was paired and finds its partner
  gone then steps down, since the partner may have taken over and fallen silent afterwards.
* With a **witness** nobody is alone, nor takes over, without its leave (``witness.py``).

A passive server takes over when a client asks for something and the partner has been silent for three heartbeats, as
the Guide says. Without a witness a partition can thus make two active ones, in two terms; the lower one ends with it.

All fields are immutable values, so ``copy.copy`` makes a second server in the same state.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final, Literal

from chappe.core import Ask, Deliver, Effect, Persist, Report, Send
from chappe.defaults import STAR_HEARTBEAT_S, STAR_MISSED_MAX, STAR_ORIGINAL_SILENT_S
from chappe.errors import StorageError, UsageError
from chappe.replication.binary_star.events import (
    Alone,
    BecameActive,
    BecamePassive,
    MayNotServe,
    OtherPair,
    Paired,
    PartnerFound,
    PartnerLost,
    SameRole,
    SteppedDown,
    TermNotKept,
)
from chappe.replication.binary_star.messages import (
    ACTIVE,
    BACKUP,
    COPY,
    LEADER,
    NAME_BYTES_MAX,
    NAMES,
    NOTHING,
    OWNER,
    PARTNER,
    PASSIVE,
    PRIMARY,
    TERM_MAX,
    WITNESS,
    Beat,
    Claim,
    Confirming,
    Confirms,
    Does,
    FollowingPartner,
    Leading,
    PairMemory,
    PartnerBeat,
    Record,
    Resting,
    decode_answer,
    decode_state,
    encode_beat,
    encode_claim,
)

CLIENT_AHEAD_MAX: Final = 1 << 20  # a client that knows of a term so much higher than ours has made it up
BELIEVE_S: Final = 60.0  # so often it may part two that keep nothing, and hear each other, with one less high
CLAIM_AGAIN: Final = 4  # times in a heartbeat a claim that is not answered is repeated at most


class BinaryStar:
    """The state of one server. Every method takes ``now``, monotonic seconds, and returns its effects in order.

    Args:
        role: ``PRIMARY`` or ``BACKUP``: each pair has one of both.
        life: A number from 1 to 2**64 - 1 that no other life of a server has.
        pair: A name that both servers and the witness have for the pair.
        heartbeat_s: The interval of its heartbeats. The partner is silent after three of its own.
        memory: The record persisted last; with it the server is durable.
        witness: Whether there is one.
    """

    def __init__(
        self,
        role: int,
        life: int,
        *,
        now: float,
        pair: bytes = b"",
        heartbeat_s: float = STAR_HEARTBEAT_S,
        memory: PairMemory | None = None,
        witness: bool = False,
    ) -> None:
        if role not in (PRIMARY, BACKUP):
            raise UsageError("a server of a pair is its primary or its backup")
        if not 0 < life < 2**64 or len(pair) > NAME_BYTES_MAX or not 0.001 <= heartbeat_s <= 60.0:
            raise UsageError(
                f"a pair's name has at most {NAME_BYTES_MAX} bytes, its heartbeat is between 1 ms and 60 s"
            )
        self.role = role
        self.life = life
        self.state = role
        self.term = 0  # in which it is active
        self._durable = memory is not None
        self._kept = self._on_disk = memory or PairMemory()
        self.record = self._kept.record
        self.seen = max(self._kept.term, self.record.term)
        self._pair = pair
        self._witness = witness
        self._heartbeat_s = heartbeat_s
        self._beat_at = now
        self._told_at = -math.inf
        self._told: Beat | None = None  # the last beat, but for its times
        # -- the partner
        self._peer: Beat | None = None
        self._original = 0  # the last state of a partner that is an original
        self._linked = False  # both hear each other
        self._silence_s = STAR_MISSED_MAX * heartbeat_s
        self._silent_at = now + max(self._silence_s, STAR_ORIGINAL_SILENT_S)
        self._conflict_until = -math.inf  # so long ago a server of the same role was heard
        self._wish = 0
        self._promised = 0  # the highest term that the partner was let have
        self._believed_at = -math.inf  # when a client knew of a higher term than both
        # -- standing still
        self._resumed_us = 0
        self._doubt_until = -math.inf
        self._replaced = False  # perhaps: it was paired when it stood still, and has not heard of the partner since
        # -- passive
        self._in_step = False
        # -- active
        self._fence = 0  # a term that somebody was active in
        self._paired_life = 0
        self._left_us = 0  # since when the partner that is there is not paired any more; 0: it knows
        self._alone = False
        self._unable_at = math.inf  # since when it can confirm nothing
        # -- the witness
        self._count = 0
        self._asked: Claim | None = None
        self._asked_at = -math.inf
        self._asked_for = (False, 0)
        self._pair_told = True  # the witness knows that it is paired
        # -- what its owner was told
        self._does: Does = Resting()
        self._next_does: Does = Resting()
        self._confirms: tuple[Confirms, int] = ("nothing", 0)
        self._why = ""
        self._reported: tuple[str, ...] = ()

    # -- looks ------------------------------------------------------------------------------------------------

    @property
    def serving(self) -> bool:
        """True if clients are to be served just now: requests are otherwise dropped, without an answer."""
        return self.state == ACTIVE and self._doubt_until == -math.inf

    @property
    def confirms(self) -> Confirms:
        """The writes that may be confirmed to clients just now; see ``Confirming``."""
        if self.state != ACTIVE:
            return "nothing"
        if self._paired_life:
            return "paired"
        return "alone" if self._alone and self._doubt_until == -math.inf else "nothing"

    @property
    def paired_life(self) -> int:
        return self._paired_life

    @property
    def partner(self) -> Literal["unknown", "here", "silent"]:
        if self._linked:
            return "here"
        return "unknown" if self._peer is None and not self._original else "silent"

    def next_timeout(self) -> float:
        return min(self._beat_at, self._silent_at) if self._linked else self._beat_at

    def invariants(self) -> list[str]:
        found = []
        if (self.state == ACTIVE) != (self.term > 0):
            found.append(f"{NAMES[self.state]} in term {self.term}")
        if self.term and self.term % 2 != self.role % 2:
            found.append(f"term {self.term} is the other one's")
        if max(self.term, self.record.term, self._promised) > self.seen:
            found.append(f"knows of term {self.seen} only: {self.story()}")
        if self._alone and self._paired_life:
            found.append("alone and paired")
        if (self._alone or self._paired_life) and self.record != Record(self.term, LEADER):
            found.append(f"confirms in term {self.term} with {self.record}")
        if self._in_step and self.state == ACTIVE:
            found.append("active and in step")
        return found

    def story(self) -> str:
        return (
            f"{NAMES[self.role]}, {NAMES[self.state]} in term {self.term} of {self.seen}, data of"
            f" {self.record.term}.{self.record.rank}, confirms {self.confirms}, partner {self.partner}"
        )

    # -- inputs -----------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Effect]:
        return self.handle_timeout(now)

    def handle_message(self, frame: bytes, now: float) -> list[Effect]:
        """Take a message from the partner's address; raises ProtocolError."""
        found = decode_state(frame)
        effects = self._wake(now)
        if isinstance(found, int):
            self._hear_original(found, now, effects)
        elif found[1] != self._pair:
            self._report_once("pair", OtherPair(found[1]), effects)
        elif found[0].role == self.role:
            if found[0].life != self.life:
                self._hear_rival(now, effects, (found[0].term, found[0].life) > (self.term, self.life))
        else:
            self._hear(found[0], now, effects)
        self._decide(now, effects)
        return self._answer(now, effects)

    def handle_request(self, known: int, now: float) -> list[Effect]:
        """Take a client's request as its vote. Serve it if ``serving`` is true after these effects.

        Args:
            known: The highest term in which the client was ever served; 0 if it knows none.
            now: Monotonic seconds.
        """
        effects = self._wake(now)
        if known <= self.seen:
            self._learn(known)
        elif known <= self.seen + CLIENT_AHEAD_MAX and self._may_be(now):
            self._believed_at = now
            self._learn(known)
        self._decide(now, effects, vote=True)
        return self._answer(now, effects)

    def _may_be(self, now: float) -> bool:
        """Return True if a server may have been active in a term that only a client knows.

        While both servers hear each other, they have told each other of all of theirs; but those that keep nothing may
        have forgotten them, both at once.
        """
        if not self._linked or self._original or self._doubt_until > -math.inf:
            return True
        return not self._durable and now >= self._believed_at + BELIEVE_S

    def caught_up(self, life: int, now: float) -> list[Effect]:
        """While active: the partner's life has confirmed that it has all that was ever confirmed."""
        effects = self._wake(now)
        peer = self._peer
        if (
            self.state == ACTIVE and not self._paired_life and self._linked and now < self._silent_at
            and peer is not None and peer.life == life and peer.state != ACTIVE
        ):  # fmt: skip
            self._paired_life = life
            self._left_us = 0
            self._alone = False
            self._pair_told = False
            self._asked = None
            self.record = Record(self.term, LEADER)
            effects.append(Report(Paired(self.term)))
        self._decide(now, effects)
        return self._answer(now, effects)

    def fell_behind(self, now: float) -> list[Effect]:
        """While active: the partner lacks writes, and has to catch up anew."""
        effects = self._wake(now)
        if self._paired_life and self._linked:
            self._left_us = _us(now)
        self._paired_life = 0
        self._decide(now, effects)
        return self._answer(now, effects)

    def copied_whole(self, now: float) -> list[Effect]:
        """While passive: an original that is active has given its whole copy."""
        effects = self._wake(now)
        self._in_step = self._in_step or (self.state == PASSIVE and self._original == ACTIVE)
        return self._answer(now, effects)

    def handle_answer(self, frame: bytes, now: float) -> list[Effect]:
        """Take an answer of the witness; raises ProtocolError."""
        answer = decode_answer(frame)
        effects = self._wake(now)
        asked = self._asked
        if answer.life != self.life:
            return self._answer(now, effects)
        self._learn(answer.term)
        if asked is not None and answer.count == asked.count:
            self._asked = None
            if answer.granted:
                self._take_grant(asked, now, effects)
            elif self.state != ACTIVE:
                self._refuse(f"the witness knows of term {answer.term}, of which this server lacks something", effects)
        self._decide(now, effects)
        return self._answer(now, effects)

    def handle_done(self, memory: PairMemory, error: StorageError | None, now: float) -> list[Effect]:
        """Note that a ``Persist`` has ended; with an error the effects behind it were not carried out."""
        if error is None:
            self._on_disk = memory
            return []
        effects: list[Effect] = []
        self._kept = self._on_disk
        self.record = self._kept.record
        self._in_step = False
        if self.state == ACTIVE:
            self._yield("the disk refused to keep the term", effects)
        self._report_once("disk", TermNotKept(), effects)
        self._does = Resting()
        self._confirms = ("nothing", 0)
        stop: list[Effect] = [Deliver(OWNER, Resting()), Deliver(OWNER, Confirming("nothing", 0))]
        return stop + self._answer(now, effects)

    def handle_timeout(self, now: float) -> list[Effect]:
        """Send heartbeats; notice that the partner is silent."""
        effects = self._wake(now)
        self._decide(now, effects)
        return self._answer(now, effects)

    # -- time -------------------------------------------------------------------------------------------------

    def _wake(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if now > self._beat_at + self._heartbeat_s:
            self._beat_at = now
            self._resumed_us = _us(now)
            self._silent_at = max(self._silent_at, now + self._silence_s)
            self._in_step = False
            self._asked = None
            if self.state == ACTIVE:
                self._doubt_until = self._silent_at
                self._replaced = self._replaced or self._paired_life != 0
        if now >= self._doubt_until:
            self._doubt_until = -math.inf
        if self._linked and now >= self._silent_at:
            self._linked = False
            self._wish = 0
            effects.append(Report(PartnerLost(self._silence_s)))
        return effects

    # -- the partner ------------------------------------------------------------------------------------------

    def _hear(self, beat: Beat, now: float, effects: list[Effect]) -> None:
        known = self._peer
        if known is not None and known.life == beat.life and beat.sent_us < known.sent_us:
            return  # overtaken by a later one
        if known is None or known.life != beat.life:
            self._told = None  # it is answered at once
            self._paired_life = self._left_us = 0
        self._peer, self._original = beat, 0
        self._silence_s = STAR_MISSED_MAX * beat.heartbeat_ms / 1000
        self._learn(beat.seen, fence=max(beat.term, beat.record_term))
        age_us = _us(now) - beat.echo_us
        heard = beat.echo_life == self.life and 0 <= age_us <= _us(max(self._silence_s, self._own_silence_s))
        if heard:
            self._link(now, False, effects)
            if beat.echo_us > self._left_us:
                self._left_us = 0
            if beat.echo_us >= self._resumed_us:
                self._doubt_until = -math.inf
                self._replaced = False
        if beat.state == ACTIVE:
            self._in_step = (
                heard and beat.echo_us >= self._resumed_us and beat.paired_life == self.life
                and self._next_does == FollowingPartner(beat.term, beat.life)
            )  # fmt: skip
            if self._in_step:
                self.record = Record(beat.term, COPY)

    @property
    def _own_silence_s(self) -> float:
        return STAR_MISSED_MAX * self._heartbeat_s

    def _hear_original(self, state: int, now: float, effects: list[Effect]) -> None:
        if state == self.role:
            self._hear_rival(now, effects, False)
            return
        self._peer, self._original = None, state
        self._paired_life = 0
        self._silence_s = STAR_ORIGINAL_SILENT_S
        self._link(now, True, effects)

    def _hear_rival(self, now: float, effects: list[Effect], stronger: bool) -> None:
        self._conflict_until = now + self._silence_s
        self._report_once("role", SameRole(self.role), effects)
        if self.state == ACTIVE and stronger:
            self._yield("another server of the same role is active", effects)

    def _link(self, now: float, original: bool, effects: list[Effect]) -> None:
        self._silent_at = now + self._silence_s
        if not self._linked:
            self._linked = True
            effects.append(Report(PartnerFound(original)))

    def _learn(self, seen: int, *, fence: int | None = None) -> None:
        """Note a term that a server knows of; in ``fence`` a server was active."""
        if seen <= TERM_MAX:
            self.seen = max(self.seen, seen)
            self._fence = max(self._fence, seen if fence is None else fence)

    # -- who is active ----------------------------------------------------------------------------------------

    def _decide(self, now: float, effects: list[Effect], *, vote: bool = False) -> None:
        if self.state == ACTIVE:
            if self._fence > self.term:
                self._yield(f"somebody was active in term {self._fence}", effects)
            elif self._linked and self._original == ACTIVE:
                self._yield("the partner, an original, is active", effects)
        if self.state == ACTIVE:
            pass
        elif now < self._conflict_until:
            self._wish = 0
            if vote:
                self._refuse("both servers are configured alike", effects)
        elif self._linked:
            if self._original:
                self._meet_original(effects)
            else:
                self._meet(effects)
            if vote and self.state != ACTIVE:
                self._refuse("the partner is there, and not active yet", effects, quiet=self.state == PASSIVE)
        elif vote:
            self._vote(now, effects)
        if self.state == ACTIVE:
            self._secure(now, effects)

    def _meet(self, effects: list[Effect]) -> None:
        """Decide when both hear each other, and this one is not active."""
        peer = self._peer
        assert peer is not None
        if peer.state == ACTIVE:
            self._wish = 0
            if peer.term >= self.record.term and self._next_does != FollowingPartner(peer.term, peer.life):
                self.state = PASSIVE
                self._in_step = False
                self._follow(peer.term, peer.life, effects)
            return
        self._next_does = Resting()
        ours, theirs = (self.record, self.role == PRIMARY), (peer.record, peer.role == PRIMARY)
        if ours < theirs:
            self._wish = 0
            if peer.wish > self._promised:
                self._promised = peer.wish
                self.seen = max(self.seen, peer.wish)
                self._in_step = False  # it may be alone at once
            return
        if self._wish <= max(self._promised, peer.seen if peer.consent != self._wish else 0, self._fence):
            self._wish = self._next_term()
        elif peer.consent == self._wish:
            self._lead(self._wish, "the partner agrees", effects)

    def _meet_original(self, effects: list[Effect]) -> None:
        state = self._original
        if state == ACTIVE:
            if self._next_does != FollowingPartner(0, 0):
                self.state = PASSIVE
                self._in_step = False
                self._follow(0, 0, effects)
        elif (state == PASSIVE and self.role == PRIMARY) or (
            state in (PRIMARY, BACKUP) and (self.role == PRIMARY or self.state == PASSIVE)
        ):
            self._lead(self._next_term(), f"the partner is {NAMES[state]}", effects)

    def _vote(self, now: float, effects: list[Effect]) -> None:
        """Decide when a client asks, and the partner does not hear us, or is silent."""
        if now < self._silent_at:
            return
        if self._witness:
            if self.role == BACKUP and self.record.rank == NOTHING:
                self._refuse("a backup that has no data never serves alone", effects)
            else:
                self._claim(True, self._next_term(), now, effects)
        elif self._in_step or self._may_begin():
            self._alone = True
            self._lead(self._next_term(), "a client asks, and the partner is silent", effects)
        elif self.state == BACKUP:
            self._refuse("a backup never serves before it has met its primary", effects)
        else:
            self._refuse("the partner confirmed writes without this server, or may have", effects)

    def _may_begin(self) -> bool:
        """Return True for a primary that just began, if nothing says that the partner has more."""
        less = self._peer is not None and self._peer.record > self.record
        return self.state == PRIMARY and self.record.rank != COPY and not self._promised and not less

    def _next_term(self) -> int:
        term = max(self.seen, self._promised, self._fence) + 1
        return term if term % 2 == self.role % 2 else term + 1

    def _lead(self, term: int, why: str, effects: list[Effect]) -> None:
        self.state, self.term = ACTIVE, term
        self.seen = max(self.seen, term)
        self._in_step = self._replaced = False
        self._wish = self._paired_life = self._left_us = 0
        self._unable_at = math.inf
        self._pair_told = True
        if self._alone:
            self.record = Record(term, LEADER)
        self._why, self._reported = "", ()
        self._next_does = Leading(term)
        effects.append(Report(BecameActive(term, why)))

    def _follow(self, term: int, life: int, effects: list[Effect]) -> None:
        self._why, self._reported = "", ()
        self._next_does = FollowingPartner(term, life)
        effects.append(Report(BecamePassive(term)))

    def _yield(self, why: str, effects: list[Effect]) -> None:
        effects.append(Report(SteppedDown(self.term, self._fence, why, self._alone)))
        self.state, self.term = PASSIVE, 0
        self._alone = False
        self._paired_life = self._wish = 0
        self._asked = None
        self._doubt_until = -math.inf
        self._next_does = Resting()

    # -- what may be confirmed --------------------------------------------------------------------------------

    def _secure(self, now: float, effects: list[Effect]) -> None:
        """While active: be paired or alone, or step down if neither can be."""
        if self._paired_life and not self._linked:
            self._paired_life = 0
        if self._paired_life:
            if self._witness and not self._pair_told:
                self._claim(False, self.term, now, effects)
        elif not self._alone:
            if not self._witness and self._replaced:
                self._yield("it stood still, and the partner, which may have taken over, is silent", effects)
                return
            if not self._witness:
                if not self._left_us or not self._linked:
                    self._be_alone(effects)
            elif self._doubt_until == -math.inf:
                self._claim(True, self.term, now, effects)
        if self._alone or self._paired_life or self._linked:
            self._unable_at = math.inf
        elif self._unable_at == math.inf:
            self._unable_at = now + self._own_silence_s
        elif now >= self._unable_at:
            self._yield("neither the partner nor the witness answers", effects)

    def _be_alone(self, effects: list[Effect]) -> None:
        self._alone = True
        self.record = Record(self.term, LEADER)
        effects.append(Report(Alone(self.term)))

    # -- the witness ------------------------------------------------------------------------------------------

    def _claim(self, alone: bool, term: int, now: float, effects: list[Effect]) -> None:
        """Send a claim, or repeat it, but not too often."""
        what = (alone, self.record.term)
        if what == self._asked_for and now < self._asked_at + self._heartbeat_s / CLAIM_AGAIN:
            return
        asked = self._asked
        if asked is None or (asked.alone, asked.base) != what or asked.term < term:
            self._count += 1
            asked = self._asked = Claim(alone, self.role, self.life, self._count, term, self.record.term)
        self._asked_for, self._asked_at = what, now
        effects.append(Ask(WITNESS, asked.count, encode_claim(asked, self._pair)))

    def _take_grant(self, asked: Claim, now: float, effects: list[Effect]) -> None:
        if self.state == ACTIVE:
            if asked.term == self.term:
                if not asked.alone:
                    self._pair_told = self._pair_told or self._paired_life != 0
                elif not self._paired_life and not self._alone:
                    self._be_alone(effects)
        elif (
            asked.alone and not self._linked and now >= max(self._silent_at, self._conflict_until)
            and now - self._asked_at <= self._own_silence_s
            and asked.term > max(self._promised, self.record.term) and asked.term >= self._fence
            and asked.base == self.record.term
        ):  # fmt: skip
            self._alone = True
            self._lead(asked.term, "a client asks, the partner is silent, and the witness agrees", effects)

    # -- what is told -----------------------------------------------------------------------------------------

    def _refuse(self, why: str, effects: list[Effect], *, quiet: bool = False) -> None:
        if why != self._why and not quiet:
            self._why = why
            effects.append(Report(MayNotServe(why)))

    def _report_once(self, kind: str, event: object, effects: list[Effect]) -> None:
        if kind not in self._reported:
            self._reported = (*self._reported, kind)
            effects.append(Report(event))

    def _answer(self, now: float, rest: list[Effect]) -> list[Effect]:
        effects: list[Effect] = []
        memory = PairMemory(max(self._kept.term, self.term), self.record)
        if self._durable and memory != self._kept:
            self._kept = memory
            effects.append(Persist(memory, first=True))
        if self._next_does != self._does and isinstance(self._next_does, Resting):
            effects.append(Deliver(OWNER, self._next_does))  # clients are to be refused before anybody else is told
            self._does = self._next_does
        doubts = self.state == ACTIVE and not self.serving
        beat = self._beat()
        if now >= self._beat_at or beat != self._told:
            self._told = beat
            self._beat_at = now + self._heartbeat_s
            state = b"" if doubts else b"%d" % self.state
            told = encode_beat(replace(beat, **self._times(now)), self._pair)
            effects.append(Send(PARTNER, PartnerBeat(state, told)))
        if self._next_does != self._does:
            self._does = self._next_does
            effects.append(Deliver(OWNER, self._does))
        confirms = (self.confirms, self._paired_life)
        if confirms != self._confirms:
            self._confirms = confirms
            effects.append(Deliver(OWNER, Confirming(*confirms)))
        return effects + rest

    def _beat(self) -> Beat:
        peer = self._peer
        return Beat(
            self.state, self.role, int(self._heartbeat_s * 1000), self.life, 0, 0 if peer is None else peer.life, 0,
            self.term, self.seen, self.record.term, self.record.rank, self._wish, self._promised, self._paired_life,
        )  # fmt: skip

    def _times(self, now: float) -> dict[str, int]:
        return {"sent_us": _us(now), "echo_us": 0 if self._peer is None else self._peer.sent_us}


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
