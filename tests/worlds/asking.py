"""Worlds of requests and queues: endpoints of the API in a tree, on hosts that die, leave, stand still and are cut off.

Always: every request ends, with what its topic's responders answer, each once; no member takes a message twice. Once
the network has been calm: a request is answered by all who can, or has no responders; a message goes to one of a queue.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Final

from tests.worlds.ground_faults import GroundFaults
from tests.worlds.residents import Life, Place, Resident
from tests.worlds.stage import DisturbedWorld, Stage

from chappe import Answer, Endpoint
from chappe.api.faces import Steps
from chappe.api.mesh.arguments import encode_value
from chappe.api.mesh.asking import ask
from chappe.defaults import QUEUE_ANNOUNCE_S, QUEUE_LEASE_S
from chappe.errors import ChappeError, Closed, NoResponders, TimedOut
from chappe.sim.world import Settings

HOST: Final = "127.0.0.1"
FIRST_PORT: Final = 9_000
HEARTBEAT_S: Final = 0.5
CALM_S: Final = 20.0  # after the last fault all are in reach of each other, and known
LAST_S: Final = 4.0  # in which calm is looked at
GONE_S: Final = 3 * HEARTBEAT_S + 0.5  # after a death the others know of it, long before a lease is over ...
COME_S: Final = 0.5  # ... and so of a member that comes, before it announces itself again
TIMEOUT_S: Final = 1.0
LATE_S: Final = 0.5
JOBS: Final = b"jobs/"
ALL: Final = "all/"  # requests that every responder answers ...
DESK: Final = "desk/"  # ... and those that one of a queue does
LOOK_S: Final = 0.02


@dataclass(slots=True)
class Asked:
    """A request: to whom it is put, when, and whether that was in the calm."""

    topic: str
    value: int
    at: float
    calm: bool


@dataclass(slots=True)
class Job:
    """A message for the queue, and who took it; ``workers`` are there, if that was in the calm."""

    at: float
    workers: int | None
    took: Counter[Life] = field(default_factory=Counter)


class MemberLife(Life):
    """An endpoint whose program publishes and asks, and may work and answer."""

    cannot = (ChappeError,)

    def __init__(self, world: Any, resident: MemberResident) -> None:
        super().__init__(world, resident)
        rng = world.rng
        self.face = Endpoint(id=uuid.UUID(bytes=rng.randbytes(16)), heartbeat_s=HEARTBEAT_S)
        self.face.listen(HOST, world.port_of(self.name))
        self.works, self.answers, self.sits = resident.roles
        self.worker = self.face.subscribe(JOBS.decode(), queue="workers") if self.works else None
        self.responders = [self.face.responder(ALL)] if self.answers else []
        if self.sits:
            self.responders.append(self.face.responder(DESK, queue="desk"))
        self.asked: dict[int, Asked] = {}
        if resident.parent:
            self.face.peer_nosync(HOST, world.port_of(resident.parent), retry_s=HEARTBEAT_S)
        self.soon(rng.random(), self._publish_some)
        self.soon(rng.random(), self._ask_some)

    # -- what its program does ----------------------------------------------------------------------------------

    def _publish_some(self) -> None:
        world = self.world
        if world.active:
            number = len(world.jobs)
            if self.face.try_publish(JOBS, encode_value(number)) is not None:
                workers = sum([each.works for each in world.alive(MemberLife)])
                world.jobs.append(Job(world.now, workers if world.calm else None))
            self.soon(world.rng.expovariate(8.0), self._publish_some)

    def _ask_some(self) -> None:
        world = self.world
        if world.active:
            world.requests += 1
            number = world.requests
            asked = self.asked[number] = Asked(world.rng.choice((ALL, DESK)), number, world.now, world.calm)
            steps = ask(self.face, asked.topic, number, TIMEOUT_S, 100)
            self._go_on(steps, lambda outcome: self._ended(asked, outcome))
            self.soon(world.rng.expovariate(4.0), self._ask_some)

    def _ended(self, asked: Asked, outcome: Any) -> None:
        del self.asked[asked.value]
        if isinstance(outcome, Closed):
            return
        if not isinstance(outcome, list):
            if not isinstance(outcome, NoResponders | TimedOut):
                self.world.fail("requests end", f"{self.name}: request {asked.value} raises {outcome!r}")
            answers: list[Answer] = []
        else:
            answers = outcome
        self.world.ended(self, asked, answers, outcome)

    def _go_on(self, steps: Steps[Any], done: Callable[[Any], None], holds: bool | None = None) -> None:
        """Do the next step of what would wait in a thread."""
        try:
            step = next(steps) if holds is None else steps.send(holds)
        except StopIteration as end:
            done(end.value)
        except ChappeError as error:
            done(error)
        else:
            assert step is not None
            until, timeout = step
            self._wait(steps, done, until, inf if timeout is None else self.world.now + timeout)

    def _wait(self, steps: Steps[Any], done: Callable[[Any], None], until: Callable[[], bool], end: float) -> None:
        holds = until()
        if holds or self.world.now >= end or self.face.closing:
            self._go_on(steps, done, holds)
        else:
            self.soon(LOOK_S, self._wait, steps, done, until, end)

    def look(self) -> None:
        """Take what has come, and answer."""
        for message in self.worker.poll() if self.worker else ():
            job = self.world.jobs[message.value]
            job.took[self] += 1
            if job.took[self] > 1:
                self.world.fail("at most once", f"{self.name} takes job {message.value} again")
        for responder in self.responders:
            for request in responder.poll():
                if (self, responder, request.value) in self.world.answered:
                    self.world.fail("at most once", f"{self.name} gets request {request.value} again")
                self.world.answered.add((self, responder, request.value))
                payload = encode_value((request.value, self.name))
                self._go_on(request._answer(payload, failed=False), lambda outcome: None)
        late = [each.value for each in self.asked.values() if self.world.now > each.at + self.world.late_s]
        if late:
            self.world.fail("requests end", f"{self.name} still waits for the answers to {late}")
        for text in [*self.face.node.member.requests.invariants(), *self.face.node.member.queues.invariants()]:
            self.world.fail("invariants", f"{self.name}: {text}")


class MemberResident(Resident):
    """An endpoint over all its lives: who it dials, and whether it works, answers, and sits at the desk."""

    life = MemberLife

    def __init__(self, world: Any, name: str, place: Place, parent: str) -> None:
        super().__init__(world, name, place)
        self.parent = parent
        self.roles = [world.rng.random() < 0.6 for _ in range(3)]


class Weather(GroundFaults):
    """What befalls hosts and the network."""

    def kinds(self) -> Sequence[tuple[int, Callable[[], None]]]:
        return (
            (6, self.crash), (4, self.leave), (3, self.stall), (4, self.cut), (2, self.cut_one_way),
            (1, self.clock_jump),
        )  # fmt: skip


class Asking(DisturbedWorld):
    """Endpoints in a tree, of which some work for a queue, some answer everything, and some share what is asked."""

    lengths_s: ClassVar[tuple[float, ...]] = (6.0, 12.0)
    tick_s: ClassVar[float] = 0.05
    events_max: ClassVar[int] = 3_000_000

    def __init__(self, seed: int, settings: Settings | None = None, tell: Callable[[str], None] | None = None) -> None:
        super().__init__(seed, settings, tell)
        self.active = True
        self.calm = False
        self.late_s = inf  # requests end so long after they began; those of a host that stands still do not
        self.jobs: list[Job] = []
        self.requests = 0
        self.answered: set[tuple[Life, Any, int]] = set()
        self._names: list[str] = []
        self.stage = Stage(self)
        self.ground_faults = Weather(self)

    def port_of(self, name: str) -> int:
        """Where an endpoint listens."""
        return FIRST_PORT + self._names.index(name)

    def count(self) -> int:
        """Messages and requests."""
        return len(self.jobs) + self.requests

    def begin(self) -> None:
        """Make the tree."""
        self._names = [f"e{number}" for number in range(self.few(self.rng.choice((2, 3, 4, 6))))]
        for number, name in enumerate(self._names):
            parent = self.rng.choice(self._names[:number]) if number else ""
            self.move_in(MemberResident(self, name, Place(self, name), parent))

    def ended(self, life: MemberLife, asked: Asked, answers: list[Answer], outcome: Any) -> None:
        """A request is over."""
        values = [each.value for each in answers]
        if any(value != asked.value for value, _ in values) or len({name for _, name in values}) < len(values):
            self.fail("right answers", f"{life.name}: request {asked.value} is answered {values}")
        if not asked.calm:
            return
        able = [each for each in self.alive(MemberLife) if (each.answers if asked.topic == ALL else each.sits)]
        if asked.topic == ALL:
            able = [each for each in able if each is not life]
        wanted = len(able) if asked.topic == ALL else min(1, len(able))
        if len(values) != wanted or (isinstance(outcome, NoResponders) is not (wanted == 0)):
            names = [each.name for each in able]
            self.fail(
                "answers come", f"{life.name}: {asked} is answered {values} ({outcome!r}), by {wanted} of {names}"
            )

    def _see_calm(self, for_s: float) -> None:
        """Look at what begins within a time in which nothing changes, and let it end."""
        self.calm = True
        self.pass_time(self.now + for_s)
        self.calm = False
        self.pass_time(self.now + self.late_s)

    def finish(self) -> float:
        """Calm down; from then on everything comes."""
        self.pass_time(self.now + CALM_S + QUEUE_LEASE_S)
        self.late_s = TIMEOUT_S + LATE_S
        self._see_calm(LAST_S)
        last = self.places[-1]  # nobody dials it
        last.kill(power_cut=self.rng.random() < 0.5)
        self.pass_time(self.now + GONE_S)
        self._see_calm(1.0)
        last.restart()
        self.pass_time(self.now + COME_S)
        self._see_calm(QUEUE_ANNOUNCE_S - 2 * COME_S)
        self.active = False
        self.pass_time(self.now + self.late_s)
        for life in self.alive(MemberLife):
            if life.asked:
                self.fail("requests end", f"{life.name} waits for the answers to {sorted(life.asked)}")
        for number, job in enumerate(self.jobs):
            if job.workers is not None and sum(job.took.values()) != min(1, job.workers):
                took = [life.name for life in job.took]
                self.fail("one of the queue", f"job {number} at {job.at:.3f} went to {took}, of {job.workers}")
        return CALM_S
