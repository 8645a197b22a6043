"""Worlds of the log: what breaks promises below the cores is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.sim.below_the_cores import forgets_who_is_due
from tests.worlds.log.faults import LogFaults
from tests.worlds.log.scenario import Log

from chappe.api.log.consumer import Consumer
from chappe.api.log.inbox import ConsumerInbox
from chappe.api.log.topic_writers import TopicWriter
from chappe.core import Deliver, Effect
from chappe.errors import StorageError
from chappe.log.storage import WriteRecords
from chappe.runtime.driver import Driver
from chappe.runtime.log_seats import Seat, SeatPorts
from chappe.runtime.store_ports import StorePorts
from chappe.runtime.worker import Lane
from chappe.sim.world import Settings
from chappe.system import time
from chappe.testing.disk import DiskOps
from chappe.transports.zeromq import PublishingSocket

Patch = pytest.MonkeyPatch


def test_a_seed_plays_the_same_world_every_time() -> None:
    told: tuple[list[str], list[str]] = ([], [])
    outcomes = [Log(17, tell=each.append).play() for each in told]
    assert outcomes[0] == outcomes[1]
    assert told[0] == told[1]
    assert len(told[0]) > 20


def test_a_world_without_faults_is_settled_at_once() -> None:
    outcome = Log(3, Settings(disturb=False)).play()
    assert outcome.failure is None
    assert outcome.settle_s < 10.0


# -- faults below the cores ---------------------------------------------------------------------------------------


def acknowledges_before_the_disk(patch: Patch) -> None:
    """A store tells its core at once that everything is written."""

    persist = Driver._persist

    def early(driver: Driver, job: Any, rest: Sequence[Effect] | None) -> None:
        if isinstance(job, WriteRecords):
            assert isinstance(driver.ports, StorePorts)
            driver.perform(driver.ports._role.handle_done(job, None, time.monotonic()))
        persist(driver, job, rest)

    def late(ports: StorePorts, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        if not isinstance(job, WriteRecords):
            return done(ports, job, outcome, now)
        if not isinstance(outcome, StorageError):
            ports.storage.publish(outcome)
        return ()

    done = StorePorts.done
    patch.setattr(Driver, "_persist", early)
    patch.setattr(StorePorts, "done", late)


def does_not_sync(patch: Patch) -> None:
    """A group commit returns before the disk has it."""
    patch.setattr(DiskOps, "fdatasync", lambda ops, fd: None)


def loses_a_job(patch: Patch) -> None:
    """A lane forgets the result of a job that ends while another one waits."""
    run = Lane._run

    def forgetful(lane: Lane, work: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        run(lane, work, None if lane._jobs and done is not None else done)

    patch.setattr(Lane, "_run", forgetful)


def counts_a_refused_write(patch: Patch) -> None:
    """A write that the disk refuses counts as done."""

    done = StorePorts.done

    def careless(ports: StorePorts, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        if isinstance(job, WriteRecords) and isinstance(outcome, StorageError):
            return ports._role.handle_done(job, None, now)
        return done(ports, job, outcome, now)

    patch.setattr(StorePorts, "done", careless)


def shows_nothing(patch: Patch) -> None:
    """What is written is acknowledged, and nobody can read it."""

    done = StorePorts.done

    def hidden(ports: StorePorts, job: Any, outcome: Any, now: float) -> Sequence[Effect]:
        if isinstance(job, WriteRecords) and not isinstance(outcome, StorageError):
            return ports._role.handle_done(job, None, now)
        return done(ports, job, outcome, now)

    patch.setattr(StorePorts, "done", hidden)


def tells_another_seat(patch: Patch) -> None:
    """What is for one of those that share a node goes to the one that came first."""

    def deliver(ports: SeatPorts[Any], effect: Deliver) -> None:
        next(iter(ports.seats.values())).user.deliver(effect.messages)

    patch.setattr(SeatPorts, "deliver", deliver)


def closes_the_node_of_others(patch: Patch) -> None:
    """Whoever leaves a node closes it, though others sit there."""
    close = Seat.close

    def everybody(seat: Seat[Any]) -> None:
        closed = seat.closed
        close(seat)
        if not closed:
            seat.node.driver.close()

    patch.setattr(Seat, "close", everybody)


def keeps_what_was_gathered(patch: Patch) -> None:
    """What nobody follows up on is never sent."""
    patch.setattr(TopicWriter, "idle", lambda writer: math.inf)


def flushes_once(patch: Patch) -> None:
    """The thread that may wait for the journal is asked once."""
    later = TopicWriter._flush_later

    def once(writer: TopicWriter) -> None:
        later(writer)
        writer._asked = True

    patch.setattr(TopicWriter, "_flush_later", once)


def stays_choked(patch: Patch) -> None:
    """What a full peer has held up is never tried again."""
    patch.setattr(PublishingSocket, "retry", lambda sock, *, patient=True: None)


def commits_what_only_came(patch: Patch) -> None:
    """A position is that of what has come, not of what the program got."""

    def position(inbox: ConsumerInbox, ahead: bool) -> Any:
        return inbox._core.positions()

    patch.setattr(ConsumerInbox, "position", position)


def calls_nobody(patch: Patch) -> None:
    """A consumer's program is told of the first records that come, and of no others."""
    deliver = Consumer._deliver

    def quiet(consumer: Consumer, action: Any) -> None:
        first, told = not consumer._core.positions(), consumer.on_ready
        consumer.on_ready = told if first else None
        deliver(consumer, action)
        consumer.on_ready = told

    patch.setattr(Consumer, "_deliver", quiet)


FAULTS = (  # and a world that shows each
    (forgets_who_is_due, 0),
    (acknowledges_before_the_disk, 0),
    (does_not_sync, 8),
    (loses_a_job, 8),
    (counts_a_refused_write, 24),
    (shows_nothing, 0),
    (tells_another_seat, 5),
    (keeps_what_was_gathered, 1),
    (flushes_once, 0),
    (stays_choked, 22),
    (commits_what_only_came, 1),
    (calls_nobody, 0),
)


@pytest.mark.parametrize(("fault", "seed"), FAULTS)
def test_a_fault_below_the_cores_is_found(fault: Callable[[Patch], None], seed: int, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Log, "settle_max_s", 60.0)
    assert Log(seed).play().failure is None
    fault(monkeypatch)
    assert Log(seed).play().failure is not None


def test_who_closes_the_node_of_others_is_found(monkeypatch: Patch) -> None:
    monkeypatch.setattr(LogFaults, "kinds", lambda faults: ((1, faults.leave_others),))
    assert Log(5).play().failure is None
    closes_the_node_of_others(monkeypatch)
    monkeypatch.setattr(Log, "settle_max_s", 60.0)
    assert Log(5).play().failure is not None
