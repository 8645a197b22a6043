"""Large states of chains: made and taken by pieces, while everything else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import msgspec
import pytest
from tests.fixed_clock import FixedClock
from tests.replication.chain_disk import Disk
from tests.replication.test_chain_joining import joiner, tail

from chappe.api.chain.key_values import KeyValues
from chappe.core import Effect, Persist, Send
from chappe.errors import ProtocolError, StorageError
from chappe.limits import CHAIN_LIMITS, ChainLimits
from chappe.replication.agreement.core import VoteRecord
from chappe.replication.chain import configuration
from chappe.replication.chain.configuration import Configuration
from chappe.replication.chain.core import ChainServerCore
from chappe.replication.chain.log import SaveState
from chappe.replication.chain.messages import Beat, Do, Join, Open, Piece, Want
from chappe.replication.chain.replica import ChainReplica
from chappe.replication.chain.rows import PARTS, Rows
from chappe.replication.chain.snapshots import MARK

LIMITS = replace(CHAIN_LIMITS, made_bytes=1_000, piece_bytes=1_000, log_bytes=20_000)
KEYS = 500


def changed(rows: Rows[str], model: dict[str, bytes], rng: Random) -> None:
    """Put, erase, or now and then clear."""
    key = f"{rng.randrange(300)}"
    if rng.random() < 0.3:
        assert rows.erase(key) == (model.pop(key, None) is not None)
    elif rng.random() < 0.002:
        rows.clear()
        model.clear()
    else:
        rows.put(key, b"%d" % rng.randrange(1_000))
        model[key] = rows.get(key) or b""


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_of_rows_is_of_its_moment_whatever_changes_while_it_is_made(seed: int) -> None:
    rng, rows, model = Random(seed), Rows(str), dict[str, bytes]()
    under_way: list[tuple[Iterator[bytes], list[bytes], dict[str, bytes], bytes]] = []
    whole = 0
    for _ in range(3_000):
        changed(rows, model, rng)
        if rng.random() < 0.01:
            at_once = msgspec.msgpack.encode(list(rows.pieces()))
            under_way.append((rows.pieces(), [], dict(model), at_once))
        for each in list(under_way):
            pieces, made, then, at_once = each
            piece = next(pieces, None)
            if piece is not None:
                made.append(piece)
                continue
            under_way.remove(each)
            other = Rows(str)
            taken = other.taking()
            for part in made:
                taken.add(part)
            taken.finish()
            assert {key: other.get(key) for key in then} == then
            assert len(other) == len(then)
            assert msgspec.msgpack.encode(made) == at_once  # all members make the same
            whole += 1
    assert len(rows) == len(model)
    assert whole > 5


def test_a_piece_of_rows_that_is_none_is_refused() -> None:
    taken = Rows(str).taking()
    for piece in (b"", b"\xc1", msgspec.msgpack.encode((PARTS, {"a": b"b"})), msgspec.msgpack.encode((0, {1: b"b"}))):
        with pytest.raises(ProtocolError):
            taken.add(piece)


def put(number: int) -> bytes:
    return b'["put", "%d", "%s"]' % (number % KEYS, b"%0100d" % number)


def filled(core: ChainServerCore) -> None:
    """Many values, more than the log may have."""
    for seq in range(1, KEYS + 1):
        core.handle_request("client", Do(1, seq, seq - 1, put(seq)), b"", 0.0)
        core.flush(0.0)


def told(actions: list[Effect], kind: type) -> list[Send]:
    return [each for each in actions if isinstance(each, Send) and isinstance(each.message, kind)]


def test_a_tail_that_makes_a_large_state_goes_on_in_time_and_so_does_who_takes_it() -> None:
    giving, taking = tail(KeyValues(), LIMITS, others=2), joiner(KeyValues(), LIMITS)
    filled(giving)
    expected = giving.replica.snapshot()
    now, beats, actions = 0.0, 0, giving.handle_message(2, Join(1, 3, 0, True), 0.0)
    steps = 0
    while not told(actions, Piece):
        now = max(now, giving.next_timeout())
        actions = giving.handle_timeout(now)
        beats += len(told(actions, Beat)) // 2
        steps += 1
        giving.handle_request("client", Do(1, KEYS + steps, KEYS + steps - 1, put(steps)), b"", now)
        giving.flush(now)
        if giving.joining.joiner is not None:
            giving.handle_message(2, Beat(1, 13, 3, 0, 0, 0, 1), now)
            actions += giving.handle_message(2, Join(1, 3, 0, True), now)
    assert steps > 40  # about a thousand bytes each
    assert now < 1.0
    assert beats >= int(now / LIMITS.beat_s)
    assert giving.committed > KEYS + 1  # commands were done meanwhile

    restored = ChainReplica(KeyValues(), LIMITS)
    made = restored.restoring()
    size, index = 0, 0
    while True:
        piece = told(actions, Piece)[0].message
        assert isinstance(piece, Piece)
        assert len(piece.data) <= LIMITS.piece_bytes
        size, index = size + len(piece.data), piece.index
        made.add(piece.data)
        if size == piece.size:
            break
        actions = giving.handle_message(2, Want(1, index, size, size + 1), now)
    made.finish(index)
    assert restored.snapshot() == expected
    assert taking.committed == 0


def alone(disk: Disk, limits: ChainLimits = LIMITS) -> ChainServerCore:
    """The only member of a durable chain."""
    decided = configuration.encode(Configuration(((0, 1),), (11,), (False,), True))
    core = ChainServerCore(
        0, ("a",), 1, VoteRecord(11, 1, decided), KeyValues(), now=0.0, clock=FixedClock(us=1),
        loaded=disk.loaded, limits=limits,
    )  # fmt: skip
    core.aligned = True  # as the head of a configuration that it has entered
    return core


def test_a_member_confirms_commands_while_its_state_is_written() -> None:
    disk = Disk(11)
    core = alone(disk)
    core.handle_request("client", Open(b"n"), b"", 0.0)
    now, saved, confirmed = 0.0, 0, 0
    saving: SaveState | None = None
    for seq in range(1, 3_000):
        core.handle_request("client", Do(1, seq, seq - 1, put(seq)), b"", now)
        for action in core.flush(now):
            if not isinstance(action, Persist):
                continue
            if isinstance(action.job, SaveState):
                assert saving is None
                saving = action.job
                disk.save(saving.change)
            else:
                assert action.job.state is None  # nothing waits for a state
                disk.write(action.job)
                core.handle_done(action.job, None, now)
        core.flush(now)
        confirmed += saving is not None and core.committed == seq + 1
        if saving is not None and seq % 50 == 0:
            refused = saved == 1 and seq % 100 == 0
            disk.saved(not refused)
            core.handle_done(saving, StorageError("no room") if refused else None, now)
            saving = None
            saved += not refused
        now += 0.002
        core.handle_timeout(now)
        assert core.invariants() == []
    assert saved > 3
    assert confirmed > 100
    assert disk.loaded.state is not None
    again = alone(disk)
    assert (again.committed, again.log.end) == (disk.loaded.committed, core.log.end)
    again.apply(again.log.end, answers=False)
    assert again.replica.snapshot() == core.replica.snapshot()


def test_a_head_with_the_longest_log_takes_commands_while_it_makes_a_state() -> None:
    disk = Disk(11)
    core = alone(disk, replace(LIMITS, window_bytes=1_000))
    core.handle_request("client", Open(b"n"), b"", 0.0)
    now, seq = 0.0, 0
    saves: list[SaveState] = []

    def go_on() -> bool:
        """Ask for one more command, and write all; returns whether it was taken."""
        nonlocal seq, now
        now += 0.003
        core.handle_timeout(now)
        end = core.log.end
        core.handle_request("client", Do(1, seq + 1, seq, put(seq)), b"", now)
        taken = core.log.end > end
        seq += taken
        for action in core.flush(now):
            if not isinstance(action, Persist):
                continue
            if isinstance(action.job, SaveState):
                saves.append(action.job)
            else:
                disk.write(action.job)
                core.handle_done(action.job, None, now)
        core.flush(now)
        return taken

    while not saves or go_on():  # until the log has its bound, as the disk takes long to save
        go_on()
    core.handle_done(saves[0], None, now)
    assert core.log.bytes > 4 * LIMITS.log_bytes
    taken, steps = 0, 0
    while len(saves) == 1:
        taken += go_on()
        steps += 1
    assert steps > 40
    assert taken > steps / 2


def test_a_state_of_another_form_or_that_ends_too_early_is_refused() -> None:
    replica = ChainReplica(KeyValues(), LIMITS)
    for broken in ((), (b"",), (b"\x91",), (MARK,), (MARK + b"\0\0\0\1",), (MARK + b"\0\0\0\1\xc1",)):
        with pytest.raises(ProtocolError):
            replica.restore(9, broken)
