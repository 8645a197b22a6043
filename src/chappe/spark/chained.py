"""A chain as the home of a sink: what ``home.py`` and ``Staging`` are with a single store.

Rows are staged and committed by commands of the chain that keeps the topics (``log/ordered/homes.py``), so all of it is
at every store of the chain that lives. A task that loses one goes on as soon as the chain does. Every command may be
repeated; so what nobody answered is asked again, by the chain's client and here.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from chappe.api.chain.client import Chain
from chappe.api.chain.member import ChainAnswer, ChainCall
from chappe.api.log.sealed import sealing_here
from chappe.data.topic import encode_topic
from chappe.errors import (
    ChappeError,
    Fenced,
    ProtocolError,
    RecordTooLarge,
    SessionExpired,
    StagedRowsMissing,
    StorageFull,
    TimedOut,
    UsageError,
)
from chappe.log.ordered.commands import (
    BODY_BYTES_MAX,
    Answer,
    BeginRun,
    Begun,
    CommitRows,
    Committed,
    Create,
    Describe,
    DropRows,
    Fences,
    Full,
    Layout,
    Missing,
    Refused,
    Repeats,
    SinkCommand,
    Staged,
    StageRows,
    decode_answer,
    encode,
)
from chappe.security import LogSecurity
from chappe.spark.encode import EncodedPiece
from chappe.spark.home import Home, Origin, Sink, refuse_older, repetition, so_many_batches

logger = logging.getLogger(__name__)

CLIENTS_MAX: Final = 16  # of this process; the least recently used one is closed
UNDER_WAY_MAX: Final = 8  # pieces that are not answered, of 4 MiB each at most
FORGET_S: Final = 1.0  # timeout for asking the chain to discard staged data; it expires later anyway
SEED_BYTES: Final = 16
T = TypeVar("T", bound=Answer)

_clients: OrderedDict[ChainPlace, Chain] = OrderedDict()


@dataclass(frozen=True, slots=True)
class ChainPlace:
    path: str  # of its configuration
    patience_s: float  # how long a chain that does not answer is waited for
    security: LogSecurity = None  # who we are, if its stores have keys

    @property
    def client(self) -> Chain:
        client = _clients.pop(self, None)
        if type(client) is not Chain:  # there is none, or a fork has left it to the parent
            client = Chain(Path(self.path), security=self.security)
        _clients[self] = client  # the most recently used is the last
        if len(_clients) > CLIENTS_MAX:
            _clients.popitem(last=False)[1].close()
        return client


def settle(place: ChainPlace, sink: Sink, batch: int, origins: Sequence[Origin] = (), again: str | None = None) -> Home:
    """Make this run of a sink the current one; see ``home.settle``.

    Raises:
        TimedOut, NoChain: The chain does not answer for ``patience_s``. Trying again later is safe.
        UsageError: The chain keeps no commits of earlier batches; or the query began anew, and what it had written is
            there.
        Fenced: Another run took over.
    """
    names = tuple(each.name for each in origins)
    answer = _ask(place, BeginRun(sink.name, sink.run, batch, sink.lasting, names, again or ""))
    if isinstance(answer, Repeats):
        raise repetition(origins[answer.origin], answer.query, so_many_batches(answer.batches))
    return Home(_name(place), "", _expected(Begun, answer, place).committed)


def begin(place: ChainPlace, sink: Sink, batch: int, origins: Sequence[Origin], again: str | None) -> Home:
    home = settle(place, sink, batch, origins, again)
    refuse_older(home, batch)
    return home


class _UnderWay(NamedTuple):
    call: ChainCall
    stage: StageRows


class ChainStaging:
    """Stages the pieces of one attempt of one task at a chain, like ``sink.Staging`` at a store.

    Every method raises TimedOut or NoChain if the chain does not answer for ``patience_s``, Fenced if another run took
    over, StorageFull if queries have staged too much, RecordTooLarge for a row beyond 4 MiB, UsageError for a topic
    that is sealed.
    """

    def __init__(self, place: ChainPlace, home: Home, sink: Sink, batch: int, task: int, attempt: int) -> None:
        self.home = home
        self.pieces = 0
        self.rows = 0
        self.topics: dict[str, None] = {}
        self._place = place
        self._sink = sink
        self._at = (batch, task, attempt)
        self._partitions: dict[str, int] = {}
        self._sealing = sealing_here(place.security)
        self._under_way: deque[_UnderWay] = deque()

    def partitions(self, topic: str) -> int:
        """Return the number of a topic's partitions; it is made with one if it is not there."""
        found = self._partitions.get(topic)
        if found is None:
            if self._sealing is not None and self._sealing.seals(topic):
                raise UsageError(
                    f"topic {topic!r} is sealed, and a sealed topic cannot be ordered: write it without `chain`"
                )
            found = self._partitions[topic] = _partitions(self._place, encode_topic(topic))
        return found

    def put(self, piece: EncodedPiece) -> None:
        if len(piece.raw) > BODY_BYTES_MAX:
            raise RecordTooLarge(
                f"a row has {len(piece.raw):,} bytes, of {BODY_BYTES_MAX:,} that a chain takes at once"
            )
        while len(self._under_way) >= UNDER_WAY_MAX:
            self._settle_oldest()
        topic = encode_topic(piece.topic)
        self._send(
            StageRows(self._sink.name, self._sink.run, *self._at, self.pieces, topic, piece.partition, piece.raw)
        )
        self.pieces += 1
        self.rows += piece.rows
        self.topics[piece.topic] = None

    def finish(self) -> None:
        while self._under_way:
            self._settle_oldest()

    def give_up(self) -> None:
        self._under_way.clear()
        _forget(self._place, [DropRows(self._sink.name, self._sink.run, *self._at)])

    def _send(self, stage: StageRows) -> None:
        self._under_way.append(_UnderWay(self._place.client.submit(encode(stage)), stage))

    def _settle_oldest(self) -> None:
        oldest = self._under_way[0]
        oldest.call.wait(self._place.patience_s)
        try:
            answer = oldest.call.take()
        except SessionExpired:  # so have all that were sent behind it; to stage a piece twice is to stage it once
            again, self._under_way = self._under_way, deque()
            for each in again:
                self._send(each.stage)
            return
        self._under_way.popleft()
        _expected(Staged, _answered(answer, self._place), self._place)


def commit(place: ChainPlace, sink: Sink, batch: int, attempts: Sequence[tuple[int, int, int, int]]) -> None:
    """Make one batch visible: task, attempt, pieces and rows of each. What was committed before stays as it is.

    Raises:
        StagedRowsMissing: The rows were let go of; the batch must be run again.
        TimedOut, NoChain: The chain does not answer. The batch may be committed: run it again.
        Fenced: Another run took over.
    """
    _expected(Committed, _ask(place, CommitRows(sink.name, sink.run, batch, tuple(attempts))), place)


def abort(place: ChainPlace, sink: Sink, batch: int, attempts: Sequence[tuple[int, int]]) -> None:
    _forget(place, [DropRows(sink.name, sink.run, batch, task, attempt) for task, attempt in attempts])


def _forget(place: ChainPlace, drops: Sequence[DropRows]) -> None:
    try:
        place.client.call_many([encode(each) for each in drops], timeout=FORGET_S)
    except ChappeError as error:
        logger.warning("%s", error)


def _ask(place: ChainPlace, command: SinkCommand | Create) -> Answer:
    """Ask the chain, again and again; a command that is repeated is done once."""
    deadline = time.monotonic() + place.patience_s
    while True:
        try:
            answer = place.client.call(encode(command), timeout=max(0.0, deadline - time.monotonic()))
            return _answered(answer, place)
        except SessionExpired:
            if time.monotonic() >= deadline:
                raise
        except TimedOut as error:
            raise TimedOut(f"{error}; run it again, which repeats nothing") from None


def _partitions(place: ChainPlace, topic: bytes) -> int:
    """Return the number of a topic's partitions; it is made if it is not there."""
    found = _layout(place, topic)
    if not found:
        answer = _ask(place, Create(topic, 1, os.urandom(SEED_BYTES)))
        found = _layout(place, topic)  # somebody else may have made it meanwhile, and with more
        if not found:
            raise UsageError(answer.why if isinstance(answer, Refused) else f"topic {topic!r} cannot be made")
    return found


def _layout(place: ChainPlace, topic: bytes) -> int:
    raw = place.client.read(encode(Describe(topic)), timeout=place.patience_s)
    return len(_expected(Layout, _decoded(raw, place), place).parts)


def _answered(answer: ChainAnswer, place: ChainPlace) -> Answer:
    return _decoded(answer.result, place)


def _decoded(raw: bytes, place: ChainPlace) -> Answer:
    """Return an answer; what stands for an error is raised."""
    try:
        answer = decode_answer(raw)
    except ProtocolError:
        raise UsageError(f"the chain {_name(place)} does not keep topics: its servers are no stores") from None
    match answer:
        case Fences(""):
            raise Fenced(f"the chain {_name(place)} has forgotten this write, which was silent for long; run it again")
        case Fences(run):
            raise Fenced(f"this run is over, run {run} took over; stop this one")
        case Missing(why):
            raise StagedRowsMissing(why)
        case Full(why):
            raise StorageFull(why)
    return answer


def _expected(kind: type[T], answer: Answer, place: ChainPlace) -> T:
    if isinstance(answer, Refused):
        raise UsageError(answer.why)
    if not isinstance(answer, kind):
        raise ProtocolError(f"the chain {_name(place)} answers {type(answer).__name__}, not {kind.__name__}")
    return answer


def _name(place: ChainPlace) -> str:
    return place.client.member.configuration.name
