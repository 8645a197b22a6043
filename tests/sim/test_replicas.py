"""Seeded worlds of data stores and of the channel, and cores broken on purpose."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any, TypeVar

import msgspec
import pytest
from tests.sources import needs_sources
from tests.worlds.channel import Channel, ChannelCores
from tests.worlds.kv.lossy import KvLossy
from tests.worlds.kv.world import KvCores

from chappe.channel import (
    ChannelConsumer,
    ChannelProducer,
    ConsumerClosed,
    HandshakeCompleted,
    Lost,
    ProducerSilent,
)
from chappe.core import Effect
from chappe.errors import ChappeError
from chappe.kv import commands as cmd
from chappe.kv.clone import KvClone
from chappe.kv.engine import Change, Entry
from chappe.kv.followers import CloneWriter
from chappe.kv.following import Following
from chappe.kv.group_commit import DoneOperation
from chappe.kv.master import KvMaster
from chappe.kv.ordering import Executed, Ordering
from chappe.kv.receiving import Receiving
from chappe.kv.role import KvRole
from chappe.kv.taking import Taking
from chappe.sim.world import Settings

CHUNK = 4


@pytest.mark.parametrize("first", range(0, 24, CHUNK))
def test_every_promise_of_a_data_store_is_kept_where_messages_are_lost(first: int) -> None:
    played = {seed: KvLossy(seed).play().failure for seed in range(first, first + CHUNK)}
    failed = {seed: failure for seed, failure in played.items() if failure is not None}

    assert failed == {}  # replay with: python -m tests.worlds --scenario kv-lossy --seed N -v


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_every_promise_of_the_channel_is_kept(first: int) -> None:
    failed = {
        seed: found for seed in range(first, first + CHUNK) if (found := Channel(seed).play().failure) is not None
    }

    assert failed == {}  # replay with: python -m tests.worlds --scenario channel --seed N


def test_nothing_goes_wrong_where_nothing_is_disturbed() -> None:
    assert [KvLossy(seed, Settings(disturb=False)).play().failure for seed in range(5)] == [None] * 5
    assert [Channel(seed, Settings(disturb=False)).play().failure for seed in range(5)] == [None] * 5


def test_a_seed_plays_the_same_world_every_time() -> None:
    lines: list[str] = []

    assert KvLossy(7).play() == KvLossy(7, tell=lines.append).play()
    assert any("sends" in line for line in lines)
    assert Channel(7).play() == Channel(7).play()


# -- stores broken on purpose -----------------------------------------------------------------------------------------


Core = TypeVar("Core", KvMaster, KvClone)


def with_part(core: type[Core], name: str, broken: type) -> type[Core]:
    """The core with one of its parts broken."""

    class Broken(core):  # type: ignore[valid-type,misc]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            getattr(self, name).__class__ = broken

    Broken.__name__ = broken.__name__
    return Broken


class TellsBeforeTheDisk(Ordering):
    def _finish(self, done: DoneOperation, now: float, actions: list[Effect]) -> None:
        self._release(done, now, actions)
        if self.durable:
            self.commits.add(DoneOperation(done.command, done.changes, (), None))


class ForgetsWriters(Taking):
    """Takes a clone that comes back for a new one."""

    def attach(self, entity: Any, command: Any, now: float, actions: list[Effect]) -> None:
        self._writers.detach(entity)
        self._writers.known.pop(entity, None)
        super().attach(entity, command, now, actions)


class PutsAnyway(Ordering):
    def _execute(self, command: cmd.Mutation) -> Executed:
        if isinstance(command, cmd.PutUnique):
            change = self._engine.put(command.key, command.value)
            return (change,), (cmd.Put(command.key, command.value, None, command.publisher),), True
        return super()._execute(command)


class NeverExpires(Ordering):
    def expire(self, now: float, actions: list[Effect]) -> None:
        self._engine._deadlines.clear()


class SnapshotsWhatIsNotDurable(Ordering):
    def frozen(self) -> list[Entry]:
        return self._engine.frozen([])


class LosesFailures(Ordering):
    """Says that all is well."""

    def _outcome(self, done: DoneOperation, error: Any) -> None:
        pass


class IgnoresFailures(Ordering):
    """Half of a failed commit stays in memory."""

    def failed(self, number: int, error: Any, now: float, actions: list[Effect]) -> None:
        self.commits._under_way = self.commits._under_way[1:]
        super().failed(number, error, now, actions)


class RepeatsWrites(Ordering):
    """Does a write twice if it comes twice."""

    def do_for(self, writer: CloneWriter, seq: int, command: Any, *rest: Any) -> None:
        super().do_for(writer, seq, command, *rest)
        if seq % 7 == 0:
            super().do_for(writer, seq, command, *rest)


class SeesNoOtherMaster(KvMaster):
    def _hear_masters(self, payloads: Iterable[bytes], now: float) -> list[Effect]:
        return []


class CountsFromTheClock(KvMaster):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._numbers = self._ordering._numbers = None


class AnswersWithoutPause(KvMaster):
    def next_timeout(self) -> float:
        return 0.0


class NeverStale(KvClone):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **{**options, "stale_s": -1.0})


class DropsWritesSilently(Following):
    """Like the original: what was under way when its master was lost is forgotten."""

    def _lose(self, reason: str, now: float, actions: list[Effect]) -> None:
        super()._lose(reason, now, actions)
        self._writes.channel.skip_to(self._writes.channel.seq)


class NeverComesBack(Following):
    """Like the original: stays with its first master."""

    def _offered(self, master: Any, *rest: Any) -> None:
        if self.master is None or master == self.master:
            super()._offered(master, *rest)


class SkipsWhatIsLost(Following):
    def _take(self, taken: Any, now: float, actions: list[Effect]) -> None:
        super()._take([each for each in taken if not isinstance(each, Lost)], now, actions)


class AddsTheSnapshot(Receiving):
    """Does not remove what the master no longer has."""

    def become(self, *, tell: bool) -> list[Change]:
        self._staged.entries = self._engine.entries | self._staged.entries
        return super().become(tell=tell)


def with_receiving(broken: type[Receiving]) -> type[KvClone]:
    """A clone that takes its snapshots so."""

    class Takes(Following):
        def _offered(self, *arguments: Any) -> None:
            super()._offered(*arguments)
            if self._receiving is not None:
                self._receiving.__class__ = broken

    Takes.__name__ = broken.__name__
    return with_part(KvClone, "_following", Takes)


class TakesAnyPiece(Receiving):
    """Does not look where a piece belongs."""

    def take_piece(self, piece: cmd.SnapshotPiece, now: float) -> bool:
        return super().take_piece(msgspec.structs.replace(piece, first=self.taken), now)


class ForgetsWhatFollows(Receiving):
    """Loses the events that came while the snapshot did."""

    def handle(self, message: cmd.Message, size: int, now: float, actions: list[Effect]) -> None:
        super().handle(message, size, now, actions)
        self.events.clear()


class NeverAsksAgain(Receiving):
    def tell(self, actions: list[Effect], again: bool = False) -> None:
        if not again:
            super().tell(actions)

    def tick(self, now: float, actions: list[Effect]) -> None:
        self.heard(now)
        super().tick(now, actions)


class KeepsWritesWithoutBound(KvClone):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._writes._unconfirmed_max = self._writes.channel._events_max = 10**9


class TakesNothingKnownForNothing(KvClone):
    """Idle as soon as it knows of nothing missing, as the original's."""

    def await_idle(self, ticket: int, timeout_s: float, now: float) -> list[Effect]:
        return KvRole.await_idle(self, ticket, timeout_s, now)

    def _has_all(self, ticket: int) -> bool:
        return True


STORES: Iterable[tuple[KvCores, tuple[str, ...]]] = [
    (
        KvCores(master=with_part(KvMaster, "_ordering", TellsBeforeTheDisk)),
        ("exactly once", "order", "one winner"),
    ),
    (KvCores(master=with_part(KvMaster, "_taking", ForgetsWriters)), ("exactly once",)),
    (KvCores(master=with_part(KvMaster, "_ordering", PutsAnyway)), ("one winner",)),
    (KvCores(master=with_part(KvMaster, "_ordering", NeverExpires)), ("expiry", "bounds")),
    (KvCores(master=with_part(KvMaster, "_ordering", SnapshotsWhatIsNotDurable)), ("order",)),
    (KvCores(master=SeesNoOtherMaster), ("two masters",)),
    (KvCores(master=with_part(KvMaster, "_ordering", LosesFailures)), ("exactly once", "one winner")),
    (
        KvCores(master=with_part(KvMaster, "_ordering", IgnoresFailures)),
        ("exactly once", "order", "convergence", "crash", "durability"),
    ),
    (KvCores(master=AnswersWithoutPause), ("no spinning",)),
    (KvCores(master=CountsFromTheClock), ("numbers",)),
    (KvCores(master=with_part(KvMaster, "_ordering", RepeatsWrites)), ("exactly once",)),
    (KvCores(clone=NeverStale), ("stale reads",)),
    (KvCores(clone=with_part(KvClone, "_following", DropsWritesSilently)), ("exactly once",)),
    (KvCores(clone=with_part(KvClone, "_following", NeverComesBack)), ("convergence", "exactly once")),
    (KvCores(clone=with_part(KvClone, "_following", SkipsWhatIsLost)), ("order", "convergence")),
    (KvCores(clone=with_receiving(AddsTheSnapshot)), ("order", "convergence")),
    (KvCores(clone=KeepsWritesWithoutBound), ("bounds",)),
    (KvCores(clone=TakesNothingKnownForNothing), ("everything",)),
    (KvCores(clone=with_receiving(TakesAnyPiece)), ("order", "convergence", "crash")),
    (KvCores(clone=with_receiving(ForgetsWhatFollows)), ("order",)),
    (KvCores(clone=with_receiving(NeverAsksAgain)), ("convergence", "snapshots")),
]


SEEDS = range(60)
# The first worlds that showed what is rare, when they were looked for: tried first.
FIRST: dict[str, tuple[int, float | None]] = {
    "CountsFromTheClock": (46, 0.1),
    "DropsWritesSilently": (42, 0.1),
    "ForgetsWriters": (7, None),
    "IgnoresFailures": (18, None),
    "KeepsWritesWithoutBound": (2, 0.1),
    "NeverAsksAgain": (5, None),
    "NeverStale": (2, None),
    "SnapshotsWhatIsNotDurable": (3, None),
    "SkipsWhatIsLost": (81, None),
    "TakesNothingKnownForNothing": (139, None),
    "TellsBeforeTheDisk": (3, 0.1),
}


def broken(cores: object) -> str:
    classes: list[type] = [getattr(cores, name) for name in cores.__dataclass_fields__]  # type: ignore[attr-defined]
    right = {KvMaster, KvClone, ChannelProducer, ChannelConsumer}
    return next(each.__name__ for each in classes if each not in right)


@pytest.mark.parametrize(
    ("cores", "checkers"), STORES, ids=lambda each: "" if isinstance(each, tuple) else broken(each)
)
def test_a_broken_store_is_caught(cores: KvCores, checkers: tuple[str, ...]) -> None:
    needs_sources()
    seen = []
    first = FIRST.get(broken(cores))
    # Small worlds show most of them.
    for seed, minutes in (*([first] if first else []), *product(SEEDS, (0.1, None))):
        failure = KvLossy(seed, Settings(minutes=minutes), cores=cores).play().failure
        if failure is not None:
            seen.append(failure[:200])
            if failure.startswith(checkers):
                return
    pytest.fail(f"no seed saw it as one of {checkers}; seen were {seen[:5]}")


# -- channels broken on purpose ---------------------------------------------------------------------------------------


class LetsGoTooEarly(ChannelProducer[Any, Any]):
    def _trim(self) -> None:
        self._buffer.clear()
        self._bytes = 0


class KeepsForEver(ChannelProducer[Any, Any]):
    def _trim(self) -> None:
        pass


class DropsNobody(ChannelProducer[Any, Any]):
    def drop(self, consumer: Any, reason: str, code: int = 0) -> list[Any]:
        return []

    def produce(self, payload: Any, now: float) -> list[Any]:
        self._events_max = 10**9
        return super().produce(payload, now)


class DoesNotBeat(ChannelProducer[Any, Any]):
    def tick(self, now: float) -> list[Any]:
        return [each for each in super().tick(now) if "Heartbeat" not in repr(each)]


class PassesGaps(ChannelConsumer[Any]):
    def _early(self, seq: int, payload: Any, now: float) -> list[Any]:
        if seq > self.next > 0:
            self.next = seq
            return self.take_event(seq, payload, now)
        return []


class TakesTwice(ChannelConsumer[Any]):
    def take_event(self, seq: int, payload: Any, now: float) -> list[Any]:
        if 0 < seq == self.next - 1:
            self.next = seq
        return super().take_event(seq, payload, now)


class AsksForNothing(ChannelConsumer[Any]):
    def _missing(self) -> tuple[int, ...]:
        return ()


class HoldsWithoutBound(ChannelConsumer[Any]):
    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "held_max": 10**9})


class PassesLosses(ChannelConsumer[Any]):
    def _drain(self, now: float) -> list[Any]:
        found = super()._drain(now)
        while found and isinstance(found[-1], Lost):
            found += self.skip_lost(now) or [ProducerSilent()]
        return found


class SpeaksThoughClosed(ChannelConsumer[Any]):
    def close(self, error: ChappeError) -> list[Any]:
        return [*self.skip_lost(0.0), ConsumerClosed(error)]


class TellsNoHandshake(ChannelProducer[Any, Any]):
    def take_ack(self, consumer: Any, seq: int, now: float) -> list[Any]:
        found = super().take_ack(consumer, seq, now)
        return [each for each in found if not isinstance(each, HandshakeCompleted)]


class TellsEachAcknowledgement(ChannelProducer[Any, Any]):
    def take_ack(self, consumer: Any, seq: int, now: float) -> list[Any]:
        if consumer in self._paths:
            self._paths[consumer].confirmed = False
        return super().take_ack(consumer, seq, now)


CHANNELS: Iterable[tuple[ChannelCores, tuple[str, ...]]] = [
    (ChannelCores(producer=LetsGoTooEarly), ("reliability", "bounds", "crash")),
    (ChannelCores(producer=KeepsForEver), ("bounds",)),
    (ChannelCores(producer=DropsNobody), ("bounds",)),
    (ChannelCores(producer=DoesNotBeat), ("heartbeats",)),
    (ChannelCores(producer=TellsNoHandshake), ("handshakes",)),
    (ChannelCores(producer=TellsEachAcknowledgement), ("handshakes",)),
    (ChannelCores(consumer=PassesGaps), ("order",)),
    (ChannelCores(consumer=TakesTwice), ("order",)),
    (ChannelCores(consumer=AsksForNothing), ("convergence", "crash", "acknowledgements")),
    (ChannelCores(consumer=HoldsWithoutBound), ("bounds",)),
    (ChannelCores(consumer=PassesLosses), ("order",)),
    (ChannelCores(consumer=SpeaksThoughClosed), ("closed",)),
]


@pytest.mark.parametrize(
    ("cores", "checkers"), CHANNELS, ids=lambda each: "" if isinstance(each, tuple) else broken(each)
)
def test_a_broken_channel_is_caught(cores: ChannelCores, checkers: tuple[str, ...]) -> None:
    needs_sources()
    seen = []
    for seed in range(60):
        failure = Channel(seed, cores=cores).play().failure
        if failure is not None:
            seen.append(failure[:200])
            if failure.startswith(checkers):
                return
    pytest.fail(f"no seed saw it as one of {checkers}; seen were {seen[:5]}")
