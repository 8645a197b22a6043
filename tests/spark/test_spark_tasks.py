"""What a worker does between its batches; without Spark."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator

import pyarrow as pa
import pytest

from chappe.spark.batch import _while_read


class Ended(BaseException):
    """What the test raises where the process would end."""


@pytest.fixture(autouse=True)
def _no_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(os, "_exit", exit_)


class Reading:
    """Batches without end that know whether their reader has closed them."""

    def __init__(self) -> None:
        self.closed = False

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield pa.record_batch({"offset": [1]})
        finally:
            self.closed = True


def written(error: Exception | None) -> Reading:
    """As Spark's worker does it: the batches are closed while the error of a write is on its way out."""
    reading = Reading()
    batches = _while_read(iter(reading))
    assert isinstance(batches, Generator)
    next(batches)
    try:
        if error is not None:
            raise error
    finally:
        batches.close()
    return reading


@pytest.mark.parametrize("error", [BrokenPipeError(), ConnectionResetError()])
def test_a_worker_whose_reader_has_gone_ends_at_once(error: OSError) -> None:
    with pytest.raises(Ended):
        written(error)


def test_other_ends_of_a_task_are_left_to_spark() -> None:
    assert written(None).closed
    with pytest.raises(ValueError, match="a real one"):
        written(ValueError("a real one"))
