"""The catalogue of topics on cores of stores that ask each other: what all agree on, and what never returns."""

from __future__ import annotations

import itertools
from collections import deque
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.log.memory_storage import MemoryLogStorage

from chappe.core import Ask, Effect, Persist, Reply, Report
from chappe.defaults import CATALOGUE_WAITING_MAX
from chappe.errors import StorageError
from chappe.limits import LOG_LIMITS, LogLimits
from chappe.log.batch import encode_batch
from chappe.log.catalogue import CatalogueJob, KeptCatalogue, forgetting, merged, retention_of, says_nothing
from chappe.log.events import ClockAhead, StoreAway
from chappe.log.messages import BatchMessage, StoreInfo
from chappe.log.queries import (
    EARLY,
    Answer,
    CatalogueRequest,
    ErrorAnswer,
    HeadsAnswer,
    HeadsRequest,
    Request,
    TopicAnswer,
    TopicChange,
    TopicEntry,
)
from chappe.log.storage import RunRetention, WriteRecords
from chappe.log.store import LogStore, StoreJob

WALL = 1_700_000_000_000_000
HOUR = 3_600_000_000
DAY = 24 * HOUR


class NetClock:
    """The clock of one store, which may be wrong."""

    def __init__(self, net: Net) -> None:
        self.net = net
        self.wrong_us = 0

    def wall_ns(self) -> int:
        return (int(self.net.now * 1e6) + self.wrong_us) * 1000


class NetStore:
    """A store and its disk, which outlives it."""

    def __init__(self, net: Net, name: str) -> None:
        self.net, self.name = net, name
        self.endpoint = f"tcp://{name}:1"
        self.storage = MemoryLogStorage(f"id-{name}")
        self.entries: dict[bytes, TopicEntry] = {}
        self.seen: dict[str, int] = {}
        self.clock = NetClock(net)
        self.core: LogStore | None = None
        self.lives = 0
        self.jobs: deque[StoreJob] = deque()
        self.refuses = ""
        self.stops_before = -1  # a job of the disk: it dies then
        self.retained: list[tuple[str, object]] = []
        self.answers: list[Answer] = []
        self.reports: list[object] = []

    def start(self) -> None:
        self.lives += 1
        self.jobs.clear()
        self.core = LogStore(
            f"{self.name}{self.lives}",
            self.storage,
            self.endpoint,
            now=self.net.now,
            clock=self.clock,
            catalogue=KeptCatalogue(tuple(self.entries.values()), dict(self.seen)),
            limits=self.net.limits,
        )
        self.perform(self.core.start(self.net.now))
        for other in self.net.stores.values():
            if other is not self and other.core is not None and self.net.joined(self, other):
                self.net.meet(self, other)

    def stop(self) -> None:
        core, self.core = self.core, None
        for other in self.net.stores.values():
            if core is not None and other.core is not None:
                other.perform(other.core.handle_gone(core.address, self.net.now))

    def perform(self, effects: list[Effect]) -> None:
        for each in effects:
            if isinstance(each, Persist):
                self.jobs.append(each.job)
            elif isinstance(each, Ask):
                self.net.questions.append((self, self.core, each))
            elif isinstance(each, Reply):
                self.net.replies.append((each.to, each.message.request_id, each.message))
            elif isinstance(each, Report):
                self.reports.append(each.event)

    def work(self) -> bool:
        """Do one job of the disk."""
        if self.core is None or not self.jobs:
            return False
        if self.stops_before == 0:
            self.stops_before = -1
            self.stop()
            return False
        self.stops_before -= self.stops_before > 0
        job = self.jobs.popleft()
        error = StorageError(self.refuses) if self.refuses else None
        if error is None and isinstance(job, WriteRecords):
            self.storage.publish(self.storage.write(job.appends))
        elif error is None and isinstance(job, CatalogueJob):
            for entry in job.entries:
                self.entries.pop(entry.topic, None)
                if not says_nothing(entry):
                    self.entries[entry.topic] = entry
            self.seen = {name: at for name, at in (self.seen | dict(job.seen)).items() if at}
        elif isinstance(job, RunRetention):
            self.retained = list(job.topics)
        self.perform(self.core.handle_done(job, error, self.net.now))
        return True

    def take(self, base: int, count: int, partition: str = "P", topic: str = "t", at_us: int | None = None) -> None:
        """A producer sends it records."""
        assert self.core is not None
        stamp = int(self.net.now * 1e6) if at_us is None else at_us
        body = encode_batch(base, [b"x"] * count, stamp)
        self.perform(self.core.handle_message(BatchMessage(topic, partition, topic, body), self.net.now))
        self.net.settle()

    def ask(self, request: Request) -> Answer | None:
        """Ask it; None if it does not answer for now."""
        assert self.core is not None
        number = next(self.net.numbers).to_bytes(8)
        self.perform(self.core.handle_request(b"admin", number, request, b"", self.net.now))
        self.net.settle()
        return self.net.answers.get(number)

    def change(self, **what: object) -> TopicAnswer:
        answer = self.ask(TopicChange(b"t", **what))  # type: ignore[arg-type]
        assert isinstance(answer, TopicAnswer), answer
        return answer

    def range(self, partition: str = "P", topic: str = "t") -> tuple[int, int] | None:
        info = self.storage.partition(topic, partition)
        return None if info is None else (info.first, info.next)


class Net:
    """Stores that hear each other unless they are cut apart; time passes when ``wait`` says so."""

    def __init__(self, limits: LogLimits = LOG_LIMITS) -> None:
        self.limits = limits
        self.now = WALL / 1e6
        self.stores: dict[str, NetStore] = {}
        self.questions: deque[tuple[NetStore, LogStore | None, Ask]] = deque()
        self.asking: dict[bytes, tuple[NetStore, LogStore, Ask]] = {}
        self.replies: deque[tuple[bytes, bytes, object]] = deque()
        self.answers: dict[bytes, Answer] = {}
        self.numbers = itertools.count(1)
        self.cut: set[frozenset[str]] = set()

    def add(self, *names: str) -> list[NetStore]:
        made = []
        for name in names:
            store = self.stores[name] = NetStore(self, name)
            store.start()
            made.append(store)
        self.wait(2)
        return made

    def joined(self, one: NetStore, other: NetStore) -> bool:
        return frozenset((one.name, other.name)) not in self.cut

    def meet(self, one: NetStore, other: NetStore) -> None:
        for told, teller in ((one, other), (other, one)):
            if told.core is not None and teller.core is not None:
                info = StoreInfo("", teller.core.address, teller.storage.store_id, teller.endpoint)
                told.perform(told.core.handle_message(info, self.now))

    def part(self, one: NetStore, other: NetStore) -> None:
        self.cut.add(frozenset((one.name, other.name)))
        for told, gone in ((one, other), (other, one)):
            if told.core is not None and gone.core is not None:
                told.perform(told.core.handle_gone(gone.core.address, self.now))

    def join(self, one: NetStore, other: NetStore) -> None:
        self.cut.discard(frozenset((one.name, other.name)))
        self.meet(one, other)

    def settle(self) -> None:
        """Carry out everything that needs no time."""
        while True:
            if self.questions:
                asker, core, ask = self.questions.popleft()
                asked = next((each for each in self.stores.values() if each.endpoint == ask.to), None)
                if core is None or asker.core is not core or asked is None or asked.core is None:
                    continue
                if self.joined(asker, asked):
                    number = next(self.numbers).to_bytes(8)
                    self.asking[number] = (asker, core, ask)
                    asked.perform(asked.core.handle_request(b"store", number, ask.request, b"", self.now))
            elif self.replies:
                to, number, message = self.replies.popleft()
                if to != b"store":
                    self.answers[number] = message.answer  # type: ignore[attr-defined]
                    continue
                asker, core, ask = self.asking.pop(number)
                if asker.core is core:
                    answer, batches = message.answer, message.batches  # type: ignore[attr-defined]
                    asker.perform(core.handle_answer(ask.ticket, answer, batches, self.now))
            elif sum(each.work() for each in self.stores.values()) == 0:
                return

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        self.settle()
        while True:
            cores = [each for each in self.stores.values() if each.core is not None]
            due = min((each.core.next_timeout() for each in cores if each.core), default=end)
            if due >= end:
                break
            self.now = max(self.now, due)
            for each in cores:
                if each.core is not None and each.core.next_timeout() <= self.now:
                    each.perform(each.core.handle_timeout(self.now))
            self.settle()
        self.now = end

    def agree(self) -> None:
        running = [each for each in self.stores.values() if each.core is not None]
        assert all(
            each.core and each.core.catalogue.entries == running[0].core.catalogue.entries
            for each in running
            if running[0].core
        )
        assert all(not each.core.invariants() for each in running if each.core)


def test_a_deletion_reaches_a_store_that_was_away_before_it_answers_anything() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 5)
    two.take(0, 5)
    two.stop()
    net.wait(60)
    assert one.change(delete=True).records == 5
    assert one.range() == (5, 5)

    two.start()
    answer = two.ask(HeadsRequest(b"t"))
    net.wait(2)

    assert two.range() == one.range() == (5, 5)
    if answer is not None:
        assert isinstance(answer, HeadsAnswer)
        assert [(info.first, info.next) for info in answer.infos()] == [(5, 5)]
    net.agree()
    one.take(5, 2)
    net.wait(3)
    assert one.range() == two.range() == (5, 7), "offsets go on"


def test_a_question_waits_until_another_store_has_told_or_a_while_has_passed() -> None:
    net = Net()
    one, two = net.add("one", "two")
    two.take(0, 5)
    two.stop()
    one.stop()
    net.wait(60)

    two.start()
    assert two.ask(HeadsRequest(b"t")) is None
    net.wait(LOG_LIMITS.catalogue_wait_s + 0.1)
    (answer,) = net.answers.values()
    assert isinstance(answer, HeadsAnswer)
    assert isinstance(two.ask(HeadsRequest(b"t")), HeadsAnswer)


def test_a_store_that_never_met_another_one_answers_at_once_and_so_does_an_empty_one() -> None:
    net = Net()
    (one,) = net.add("one")
    one.take(0, 5)
    one.stop()
    one.start()
    assert isinstance(one.ask(HeadsRequest(b"t")), HeadsAnswer)
    assert one.seen == {}


def test_two_stores_that_start_at_once_do_not_wait_for_each_other() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 5)
    two.take(0, 5)
    one.stop()
    two.stop()
    one.start()
    two.start()
    net.settle()
    assert isinstance(one.ask(HeadsRequest(b"t")), HeadsAnswer)
    assert isinstance(two.ask(HeadsRequest(b"t")), HeadsAnswer)


def test_a_new_store_takes_nothing_deleted_from_one_that_was_away() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 5)
    two.take(0, 5)
    two.stop()
    one.change(delete=True)
    two.start()
    (new,) = net.add("new")
    net.wait(10)
    assert new.range() in (None, (5, 5))
    net.agree()


def test_a_store_whose_producer_is_ahead_of_the_clock_learns_by_offsets_what_is_deleted_and_keeps_what_came_later() -> (
    None
):
    net = Net()
    one, two = net.add("one", "two")
    ahead = WALL + 7 * HOUR
    one.take(0, 5, at_us=ahead)
    two.take(0, 5, at_us=ahead)
    net.part(one, two)
    two.take(5, 2, at_us=ahead)
    assert one.change(delete=True).entry.floors == [(b"P", 5)]
    assert two.range() == (0, 7)

    net.join(one, two)
    net.wait(5)
    assert one.range() == two.range() == (5, 7)


def test_a_trim_reaches_records_that_only_a_store_had_that_was_away() -> None:
    net = Net()
    one, two = net.add("one", "two")
    net.part(one, two)
    two.take(0, 5, partition="Q")
    net.wait(10)
    moment = int(net.now * 1e6)
    net.wait(10)
    two.take(5, 2, partition="Q")
    one.change(before=moment)
    net.join(one, two)
    net.wait(5)
    assert two.range("Q") == one.range("Q") == (5, 7)


def test_of_two_administrators_of_stores_apart_the_later_counts_at_all() -> None:
    net = Net()
    one, two = net.add("one", "two")
    net.part(one, two)
    one.change(settings={"retention_s": 60.0, "note": "first"})
    net.wait(1)
    two.change(settings={"retention_s": 120.0})
    net.join(one, two)
    net.wait(5)
    net.agree()
    assert one.entries == two.entries
    assert one.entries[b"t"].settings == {"retention_s": 120.0}
    net.wait(LOG_LIMITS.maintain_s)
    assert [topic for topic, _ in one.retained] == ["t"], "its retention is run with the setting"


def test_settings_are_merged_removed_and_gone_with_the_topic() -> None:
    net = Net()
    (one,) = net.add("one")
    one.change(settings={"retention_s": 60.0, "retention_bytes": 5})
    one.change(settings={"retention_s": None})
    assert one.entries[b"t"].settings == {"retention_bytes": 5}
    assert one.change(delete=True).entry.settings == {}
    assert one.change(create=True).entry.deleted is False


def test_a_change_that_is_far_ahead_of_a_clock_is_refused_and_taken_once_clocks_agree() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.clock.wrong_us = HOUR
    entry = one.change(settings={"retention_s": 60.0}).entry
    net.wait(5)
    assert two.entries == {}
    assert any(isinstance(each, ClockAhead) for each in two.reports)
    refused = two.ask(TopicChange(b"t", entry=entry))
    assert isinstance(refused, ErrorAnswer)
    assert "correct the clock" in refused.text
    one.take(0, 3)
    net.wait(5)
    assert two.range() == (0, 3), "its records are taken all the same"

    two.clock.wrong_us = HOUR
    net.wait(2 * LOG_LIMITS.maintain_s)
    net.agree()
    assert two.change(settings={"retention_s": 30.0}).entry.stamp > entry.stamp


def test_what_was_stamped_while_a_clock_was_ahead_is_taken_once_it_is_corrected() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 3)
    net.wait(2)
    one.clock.wrong_us = DAY
    one.change(delete=True)
    one.change(settings={"retention_s": 60.0})
    net.wait(5)
    assert two.entries == {}
    one.clock.wrong_us = 0
    net.wait(2 * LOG_LIMITS.maintain_s)
    net.agree()
    assert two.range() == (3, 3)
    assert two.change(settings={"retention_s": 30.0}).entry.settings == {"retention_s": 30.0}
    net.wait(3)
    assert one.entries[b"t"].settings == {"retention_s": 30.0}


def test_a_store_whose_clock_is_behind_still_has_the_last_word_once_it_knows_of_others() -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.change(settings={"retention_s": 60.0})
    net.wait(3)
    two.clock.wrong_us = -30_000_000
    two.change(settings={"retention_s": 30.0})
    net.wait(3)
    net.agree()
    assert one.entries[b"t"].settings == {"retention_s": 30.0}


@pytest.mark.parametrize("step", range(4))
def test_a_kill_at_any_step_of_a_deletion_loses_nothing_that_was_confirmed(step: int) -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 5)
    two.take(0, 5)
    two.stop()
    assert one.core is not None
    one.stops_before = step
    confirmed = one.ask(TopicChange(b"t", delete=True)) is not None
    if one.core is not None:
        one.stop()
    one.start()
    two.start()
    net.wait(10)
    net.agree()
    if confirmed:
        assert one.range() == two.range() == (5, 5)


@pytest.mark.parametrize("step", range(4))
def test_a_kill_at_any_step_of_taking_a_deletion_leads_to_it(step: int) -> None:
    net = Net()
    one, two = net.add("one", "two")
    one.take(0, 5)
    two.take(0, 5)
    two.stop()
    one.change(delete=True)
    two.stops_before = step
    two.start()
    net.wait(3)
    if two.core is None:
        two.start()
    net.wait(10)
    assert two.range() == (5, 5)
    net.agree()


def test_a_disk_that_refuses_is_told_of_and_the_change_can_be_asked_for_again() -> None:
    net = Net()
    (one,) = net.add("one")
    one.take(0, 5)
    one.refuses = "no room"
    refused = one.ask(TopicChange(b"t", delete=True))
    assert isinstance(refused, ErrorAnswer)
    assert "no room" in refused.text
    one.refuses = ""
    one.change(delete=True)
    assert one.entries[b"t"].deleted


def test_a_store_that_was_away_for_longer_than_deletions_are_remembered_asks_before_it_answers() -> None:
    net = Net()
    one, two = net.add("one", "two")
    two.take(0, 5)
    two.take(0, 5, partition="Q", at_us=WALL + 50 * DAY)
    one.change(settings={"retention_s": 1e9})
    net.wait(5)
    assert one.range() == (0, 5)
    two.stop()
    one.change(delete=True)
    net.now += 40 * DAY / 1e6
    net.wait(2 * LOG_LIMITS.maintain_s)
    assert one.entries == {}, "it is forgotten that it was deleted"
    one.stop()

    two.start()
    net.wait(60)
    refused = two.ask(HeadsRequest(b"t"))
    assert isinstance(refused, ErrorAnswer)
    assert refused.kind == EARLY
    assert "was away for 40.0 days" in refused.text
    assert any(isinstance(each, StoreAway) for each in two.reports)
    one.start()
    net.wait(10)
    assert isinstance(two.ask(HeadsRequest(b"t")), HeadsAnswer)
    assert two.range() == (5, 5)
    assert two.range("Q") == (5, 5)
    net.agree()
    assert two.entries == {}


def test_bounds_are_kept_with_a_sentence() -> None:
    net = Net(LogLimits(catalogue_topics_max=2, catalogue_floors_max=1))
    (one,) = net.add("one")
    for topic in (b"a", b"b"):
        assert isinstance(one.ask(TopicChange(topic, create=True)), TopicAnswer)
    full = one.ask(TopicChange(b"c", create=True))
    assert isinstance(full, ErrorAnswer)
    assert "2 topics, which is the most" in full.text
    for partition in "PQ":
        one.take(0, 1, partition=partition, topic="a", at_us=WALL + DAY)
    many = one.ask(TopicChange(b"a", delete=True))
    assert isinstance(many, ErrorAnswer)
    assert "correct the clocks" in many.text
    assert one.range("P", "a") == (0, 1)
    assert one.core is not None
    for number in range(CATALOGUE_WAITING_MAX + 1):
        one.perform(
            one.core.handle_request(
                b"me", (number + 1_000_000).to_bytes(8), TopicChange(b"a", create=True), b"", net.now
            )
        )
    busy = one.ask(TopicChange(b"a", create=True))
    assert isinstance(busy, ErrorAnswer)
    assert "ask again" in busy.text


def test_a_large_catalogue_is_handed_on_in_pages() -> None:
    net = Net()
    (one,) = net.add("one")
    for number in range(250):
        one.ask(TopicChange(b"t%d" % number, settings={"retention_s": 60.0}))
    (two,) = net.add("two")
    net.wait(5)
    assert len(two.entries) == 250
    net.agree()
    assert two.core is not None
    assert two.core.catalogue.answer(CatalogueRequest(two.core.catalogue.version), serves=True).entries == []


stamps = st.integers(0, 5)
entries = st.builds(
    TopicEntry,
    st.just(b"t"),
    stamps,
    st.sampled_from(["", "a", "b"]),
    st.booleans(),
    st.dictionaries(st.sampled_from(["x", "y"]), st.integers(0, 2)),
    stamps,
    stamps,
    st.dictionaries(st.sampled_from([b"P", b"Q"]), stamps).map(lambda each: sorted(each.items())),
)


@given(entries, entries, entries)
def test_merging_needs_no_order(one: TopicEntry, two: TopicEntry, three: TopicEntry) -> None:
    assert merged(one, one) == one
    assert merged(one, two) == merged(two, one)
    assert merged(merged(one, two), three) == merged(one, merged(two, three))
    assert says_nothing(forgetting(merged(one, two), 9)) or not merged(one, two).deleted


@given(st.dictionaries(st.sampled_from(["retention_s", "retention_bytes", "x"]), st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), st.text(max_size=3))))  # fmt: skip
def test_whatever_settings_say_a_retention_has_positive_numbers_or_none(settings: dict[str, object]) -> None:
    found = retention_of(settings)  # type: ignore[arg-type]
    numbers = [] if found is None else [found.age_s, found.bytes, found.records]
    assert all(each is None or each > 0 for each in numbers)


@pytest.mark.parametrize("seed", range(30))
def test_stores_apart_with_wrong_clocks_and_kills_agree_in_quiet_and_nothing_deleted_returns(seed: int) -> None:
    rng = Random(seed)
    net = Net()
    stores = net.add("one", "two", "three")
    ends: dict[str, int] = {}
    written: dict[tuple[str, int], int] = {}  # partition and offset to the stamp of the record
    gone: dict[str, int] = {}  # confirmed deletions: below these offsets nothing is left
    had_by: dict[str, set[tuple[str, int]]] = {each.name: set() for each in stores}
    asked: dict[str, int] = {}  # ... and of others, which may be done in part

    def running() -> list[NetStore]:
        return [each for each in stores if each.core is not None]

    for _ in range(60):
        action = rng.random()
        one, two = rng.sample(stores, 2)
        if action < 0.4 and running():
            partition = rng.choice("PQR")
            stamp = int(net.now * 1e6) + rng.choice((0, 0, -HOUR, HOUR))
            base = ends.get(partition, 0)
            ends[partition] = base + 2
            for offset in (base, base + 1):
                written[partition, offset] = stamp
            for each in running():
                if rng.random() < 0.8:
                    each.take(base, 2, partition, at_us=stamp)
        elif action < 0.5 and one.core is not None and one.core.serves:
            had = {each: found for each in "PQR" if (found := one.range(each)) is not None}
            asked = {each: max(asked.get(each, 0), had.get(each, (0, 0))[1]) for each in "PQR"}
            one.stops_before = rng.choice((-1, -1, 0, 1, 2))
            answer = one.ask(TopicChange(b"t", delete=True))
            one.stops_before = -1
            if isinstance(answer, TopicAnswer):
                gone = {each: max(gone.get(each, 0), had.get(each, (0, 0))[1]) for each in "PQR"}
        elif action < 0.55 and one.core is not None:
            one.ask(TopicChange(b"t", settings={"retention_s": 1e9 + rng.randrange(9)}))
        elif action < 0.65:
            if one.core is None:
                one.start()
            else:
                one.stop()
        elif action < 0.75:
            if net.joined(one, two):
                net.part(one, two)
            else:
                net.join(one, two)
        elif action < 0.8:
            one.clock.wrong_us = rng.choice((0, 20_000_000, -20_000_000))
        else:
            net.wait(rng.choice((0.1, 1.0, 10.0)))
        for each in running():
            assert each.core is not None
            assert each.core.invariants() == []
    for each in stores:
        each.clock.wrong_us = 0
        if each.core is None:
            each.start()
    for one, two in itertools.combinations(stores, 2):
        if not net.joined(one, two):
            net.join(one, two)
    net.wait(3 * LOG_LIMITS.maintain_s)
    net.agree()
    entry = stores[0].entries.get(b"t", TopicEntry(b"t"))
    for each in stores:
        for partition in "PQR":
            first, end = each.range(partition) or (0, 0)
            assert first == end or first >= gone.get(partition, 0), f"{each.name} has deleted records of {partition}"
            for of, at in had_by[each.name]:
                stays = of == partition and at >= asked.get(of, 0) and written[of, at] >= entry.before
                assert not stays or at >= first, f"{each.name} has lost {at} of {of}, which was never deleted"
