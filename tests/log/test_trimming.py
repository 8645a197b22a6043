"""Topics that a store is asked to trim: what goes, who is answered when, and what stays."""

from __future__ import annotations

from pathlib import Path

from tests.log.effects import jobs
from tests.log.store_rig import WALL, StoreRig
from tests.storage.test_segments import batch, everything, filled, keep, segments

from chappe.core import Effect, Persist, Reply
from chappe.errors import StorageError
from chappe.log.catalogue import EVER, CatalogueJob
from chappe.log.queries import TopicAnswer, TopicChange
from chappe.log.storage import RunRetention
from chappe.storage.segments import SegmentStorage


def asked(rig: StoreRig, before: int, topic: bytes = b"hello") -> list[Effect]:
    return rig.core.handle_request(b"me", b"12345678", TopicChange(topic, before=before), b"", rig.now)


def held(rig: StoreRig, partition: str = "P") -> tuple[int, int]:
    found = rig.storage.partition("hello", partition)
    assert found is not None
    return found.first, found.next


def answers(effects: list[Effect]) -> list[int]:
    """The numbers of records of answers."""
    found = [each.message.answer for each in effects if isinstance(each, Reply)]
    return [each.records for each in found if isinstance(each, TopicAnswer)]


def test_who_trims_a_topic_is_answered_once_the_disk_has_it() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a", b"b"))
    rig.settle(rig.batch(0, b"c", partition="Q"))

    assert asked(rig, EVER) == [Persist(RunRetention())]

    assert (held(rig), held(rig, "Q")) == ((2, 2), (1, 1))
    (job,) = jobs(rig.core.handle_done(RunRetention(), None, rig.now), CatalogueJob)
    assert [(each.topic, each.before) for each in job.entries] == [(b"hello", WALL)]
    assert answers(rig.core.handle_done(job, None, rig.now)) == [3]
    assert rig.core.handle_done(RunRetention(), None, rig.now) == []
    rig.settle(rig.batch(2, b"d"))
    assert held(rig) == (2, 3), "offsets go on"


def test_a_run_that_was_under_way_before_answers_nobody() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))
    assert rig.wait(rig.core.limits.maintain_s).count(Persist(RunRetention())) == 1
    asked(rig, EVER)

    assert rig.core.handle_done(RunRetention(), None, rig.now) == []
    assert len(rig.core.handle_done(RunRetention(), None, rig.now)) == 1


def test_what_was_written_since_and_other_topics_stay() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))

    asked(rig, WALL)
    (job,) = jobs(rig.core.handle_done(RunRetention(), None, rig.now), CatalogueJob)
    assert answers(rig.core.handle_done(job, None, rig.now)) == [0]
    asked(rig, EVER, b"hell")
    assert held(rig) == (0, 1)


def test_what_lies_before_a_reset_leaves_the_disk_in_whole_segments_and_does_not_come_back(tmp_path: Path) -> None:
    storage = filled(tmp_path)
    keep(storage, batch(0, 5, topic="other"))
    storage.reset("t", "p", 35)
    storage.forget(storage.retain([], 0))
    assert everything(storage) == list(range(35, 100))
    assert len(segments(tmp_path)) == 9, "three of eleven are gone, and one that has some of it is not"

    storage.reset("t", "p", 100)
    storage.reset("t", "q", 1)
    storage.forget(storage.retain([], 0))

    assert len(segments(tmp_path)) == 1
    assert everything(storage, "other") == list(range(5))
    storage.close()
    again = SegmentStorage(tmp_path, segment_entries=2)
    found = again.partition("t", "p")
    assert found is not None
    assert (found.first, found.next, again.holes()) == (100, 100, [])
    keep(again, batch(100, 5))
    assert everything(again) == list(range(100, 105))


def test_what_a_refusing_disk_did_not_make_durable_is_done_again_before_another_trim_is_confirmed() -> None:
    rig = StoreRig()
    rig.settle(rig.batch(0, b"a"))
    asked(rig, EVER)
    (refused,) = rig.core.handle_done(RunRetention(), StorageError("no room"), rig.now)
    assert isinstance(refused, Reply)
    assert "no room" in refused.message.answer.text
    assert asked(rig, EVER) == [Persist(RunRetention())], "nothing is left to forget, and that is not on disk yet"
