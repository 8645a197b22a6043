"""What a reader makes of batches of sealed topics: what it passes over, and reads again as a member."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.sealing.people import FAR, TEXT, Group

from chappe.log.batch import Batch, encode_batch, encode_sealed
from chappe.log.opened import OpenedRead, Unread, UnreadWhy
from chappe.permissions import rules
from chappe.permissions.rules import Permissions
from chappe.sealing.epochs import GroupKeys
from chappe.sealing.in_log import PASSED_EPOCHS_MAX, RecordOpening
from chappe.sealing.records import RecordSpan
from chappe.sealing.ring import HeldGroups

TOPIC, PARTITION = "patients/1", "P"
ISSUED = datetime(2026, 1, 1, tzinfo=UTC)


class Reader:
    """cat, who is known and not of the group at first, with the files that she has."""

    def __init__(self) -> None:
        self.group = Group()
        self.group.join("cat")
        self.group.leave("cat")
        self.keys = self.group.keys
        self.held = HeldGroups("cat", self.group.private["cat"], self.permissions(), "the keys of {}".format)
        self.opening = RecordOpening(self.held)
        self.look()

    def permissions(self) -> Permissions:
        group = self.group
        sealed = (rules.Group("ward", ("patients/*",), frozenset(), frozenset(group.members)),)
        return Permissions(1, ISSUED, FAR, dict(group.identities), (), {}, sealed)

    def look(self, permissions: Permissions | None = None, keys: GroupKeys | None = None) -> None:
        """Her files have come."""
        found = self.keys = keys or self.keys
        self.held.take(permissions or self.held.permissions, lambda name: found)

    def batch(self, offset: int, count: int = 2) -> Batch:
        """Sealed by ann, with the newest keys."""
        raw = encode_batch(offset, [TEXT] * count, 1_000)
        secret = self.group.ring("ann").newest
        assert secret is not None
        span = RecordSpan(offset, count, 1_000, 1_000)
        body = self.group.sealer("ann").seal(secret, TOPIC, PARTITION, span, raw, self.group.micros)
        return Batch.parse(encode_sealed(offset, count, 1_000, 1_000, *body), check=False)

    def open(self, batch: Batch) -> UnreadWhy | None:
        """Why it cannot be read, having gone on behind it if she is not of the group; None if it can."""
        outcome = self.opening.open(TOPIC, PARTITION, batch)
        if isinstance(outcome, OpenedRead):
            return None
        if outcome.why is UnreadWhy.NOT_OURS:
            self.opening.pass_over(TOPIC, PARTITION, batch, batch.base)
        return outcome.why

    def join(self) -> None:
        self.group.join("cat")


def test_what_came_before_her_own_files_is_read_again() -> None:
    cat = Reader()
    assert cat.open(cat.batch(0)) is UnreadWhy.NOT_OURS
    cat.join()
    assert [cat.open(each) for each in (cat.batch(2), cat.batch(4))] == [UnreadWhy.NOT_OURS] * 2
    assert cat.opening.again() == []
    cat.look(cat.permissions())
    assert cat.opening.again() == []  # the keys come later
    assert cat.opening.passed
    cat.look(keys=cat.group.keys)
    assert cat.opening.again() == [(TOPIC, PARTITION, 2)]
    assert not cat.opening.passed
    assert cat.open(cat.batch(2)) is None


def test_nothing_is_read_before_that() -> None:
    cat = Reader()
    cat.join()
    cat.open(cat.batch(0))
    cat.look(cat.permissions(), cat.group.keys)
    outcome = cat.opening.open(TOPIC, PARTITION, cat.batch(2))
    assert outcome == Unread(UnreadWhy.NO_KEYS_YET, "what comes before, and was passed over, is read again first")
    assert cat.opening.again() == [(TOPIC, PARTITION, 0)]


def test_what_is_given_after_something_was_read_is_not_read_again() -> None:
    cat = Reader()
    first = cat.group.keys.newest.number
    cat.open(cat.batch(0))
    cat.join()
    cat.look(cat.permissions(), cat.group.keys)
    assert cat.open(cat.batch(2)) is None
    cat.group.give("cat", first)
    cat.look(keys=cat.group.keys)
    assert cat.opening.again() == []


def test_of_many_epochs_the_newest_are_remembered() -> None:
    cat = Reader()
    for offset in range(PASSED_EPOCHS_MAX + 5):
        cat.group.rotate()
        cat.open(cat.batch(offset, 1))
    cat.join()
    cat.group.give("cat", 1)
    cat.look(cat.permissions(), cat.group.keys)
    assert cat.opening.again() == [(TOPIC, PARTITION, 5)]


def test_what_is_no_sealed_batch_is_not_remembered() -> None:
    cat = Reader()
    cat.opening.pass_over(TOPIC, PARTITION, Batch.parse(encode_batch(0, [b"x"], 1), check=False), 0)
    cat.opening.pass_over(TOPIC, PARTITION, Batch.parse(encode_sealed(0, 1, 1, 1, b"nonsense"), check=False), 0)
    assert not cat.opening.passed
