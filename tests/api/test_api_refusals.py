"""What a newcomer gives by mistake, what a machine does not have, and what members show of themselves."""

from __future__ import annotations

import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.api.members import PATIENCE_S
from tests.waiting import until

from chappe import Consumer, Endpoint, Producer, Store, Tower
from chappe.api import times
from chappe.api.times import as_micros
from chappe.errors import TooManyOpenFiles, UsageError
from chappe.transports.queries import StoreClient

NOWHERE = "127.0.0.1:1"


@pytest.mark.parametrize("topics", [["a", "b"], ("a",), b"a", 1, None], ids=str)
def test_topics_that_are_no_texts_are_refused_with_how_they_are_given(topics: Any) -> None:
    with pytest.raises(UsageError, match=r"one by one: Consumer\('a', 'b'\)"):
        Consumer(topics, tower=NOWHERE)


NOW_NS = 1_795_000_000_000_000_000  # of late 2026; the same in all workers that share the tests


@pytest.mark.parametrize("moment", [NOW_NS, -NOW_NS, 1 << 63, 253_402_300_800_000_000])
def test_a_time_beyond_the_calendar_is_refused_and_the_unit_named(moment: int) -> None:
    with pytest.raises(UsageError, match=r"are not within the years 1 to 9999: .* in microseconds"):
        as_micros(moment)


def test_a_time_in_seconds_with_a_fraction_is_refused_and_the_unit_named() -> None:
    with pytest.raises(UsageError, match=r"whole microseconds since 1970 \(time\.time_ns\(\) // 1000\)"):
        as_micros(time.time())  # type: ignore[arg-type]


@pytest.mark.parametrize(("per_second", "unit"), [(1, "seconds"), (1_000, "milliseconds")])
def test_a_time_that_looks_like_another_unit_is_taken_and_warned_of_once(
    per_second: int, unit: str, caplog: pytest.LogCaptureFixture
) -> None:
    times._warn.cache_clear()
    moment = int(time.time()) * per_second
    assert as_micros(moment) == as_micros(moment) == moment
    (warning,) = caplog.messages
    assert f"one of today in {unit}: a time is microseconds" in warning


@pytest.mark.parametrize(
    "moment", [0, -1, 1, -62_135_596_800_000_000, 253_402_300_799_999_999, datetime.max.replace(tzinfo=UTC)], ids=str
)
def test_times_of_the_calendar_are_taken_however_early(moment: int | datetime) -> None:
    assert as_micros(moment) == moment or isinstance(moment, datetime)


def test_members_show_what_they_are(tower: str, store: Store, tmp_path: Path) -> None:
    with Producer("t", tower=tower) as producer:
        producer.send_many([b"a", b"b"])
        producer.flush(PATIENCE_S)
    with Consumer("t", "u.*", tower=tower) as consumer:
        (batch,) = consumer.batches_to_end(PATIENCE_S)
        assert repr(batch) == f"<ConsumedBatch of 't', partition {producer.partition}, offsets 0 to 1>"
        assert repr(consumer).startswith(f"<Consumer of 't', 'u.*' at {tower}, ")
        assert repr(consumer).endswith(" members known>")
    assert repr(consumer) == f"<Consumer of 't', 'u.*' at {tower}, closed>"
    assert repr(store) == f"<Store {store.store_id} in {tmp_path / 'store'}, {store.endpoint}>"
    with Tower("127.0.0.1:0") as other:
        assert repr(other) == f"<Tower {other.address}>"
    with Endpoint() as endpoint:
        assert repr(endpoint) == f"<Endpoint {endpoint.id}, 0 connections>"
    assert repr(endpoint) == f"<Endpoint {endpoint.id}, closed>"


@pytest.fixture
def none_left() -> Iterator[Callable[[int], None]]:
    """Lets this process open so many further descriptors."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    gc.collect()
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)

    def leave(count: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + count, limits[1]))

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.parametrize(
    "make",
    [
        lambda directory: Producer("t", tower=NOWHERE),
        lambda directory: Producer("t", tower=NOWHERE, identity="me", directory=directory),
        lambda directory: Consumer("t", tower=NOWHERE),
        lambda directory: Consumer("t", tower=NOWHERE, identity="me", directory=directory),
        lambda directory: Store(directory, tower=NOWHERE),
        lambda directory: Tower("127.0.0.1:0"),
        lambda directory: Endpoint(),
        lambda directory: StoreClient("tcp://127.0.0.1:1"),
    ],
)
def test_without_descriptors_a_member_is_refused_and_nothing_is_kept(
    make: Callable[[Path], Any], tmp_path: Path, none_left: Callable[[int], None]
) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for count in (0, 1, 2, 7):
        none_left(count)
        with pytest.raises(TooManyOpenFiles, match="ulimit -n"):
            make(tmp_path)
    none_left(500)
    until(lambda: len(os.listdir("/proc/self/fd")) <= before)
    make(tmp_path).close()
