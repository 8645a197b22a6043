"""Trace context from who sends a record to who reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from tests.waiting import PATIENCE_S

from chappe import AsyncProducer, Consumer, Producer
from chappe.api.log.store import Store
from chappe.api.tracing import context_of, inject, links_of, processing
from chappe.errors import UsageError
from chappe.log.batch import Record

TRACE: int = 0x4BF92F3577B34DA6A3CE929D0E0E4736


@contextmanager
def current(span: int) -> Iterator[str]:
    """A span of some program around us; yield its ``traceparent``."""
    context = SpanContext(TRACE, span, is_remote=False, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        yield f"00-{TRACE:032x}-{span:016x}-01"


def read(tower: str, count: int) -> list[Record]:
    with Consumer("t", tower=tower) as consumer:
        found: list[Record] = []
        while len(found) < count:
            batch = consumer.poll(PATIENCE_S)
            assert batch is not None
            found += batch
    return sorted(found, key=lambda each: each.value or b"")


def test_the_context_of_the_sender_is_in_the_headers(tower: str, store: Store) -> None:
    with Producer("t", tower=tower, tracing="context") as producer, Producer("t", tower=tower) as plain:
        with current(1) as first:
            assert producer.send("a", headers={"kind": "x", "traceparent": "old"}) == 0
            plain.send("d")
        with current(2) as second:
            assert producer.send_many(["b", "c"]) == range(1, 3)
        plain.send("e")

        async def send() -> None:
            async with AsyncProducer("t", tower=tower, tracing="context") as also:
                with current(3):
                    await also.send("f")

        asyncio.run(send())
        producer.flush(PATIENCE_S)
        plain.flush(PATIENCE_S)
    a, b, c, d, e, f = read(tower, 6)
    assert a.headers == (("kind", b"x"), ("traceparent", first.encode()))
    assert b.headers == c.headers == (("traceparent", second.encode()),)
    assert d.headers == e.headers == ()
    assert trace.get_current_span(context_of(f)).get_span_context().span_id == 3
    links = links_of([a, b, c, d])
    assert [(each.context.trace_id, each.context.span_id) for each in links] == [(TRACE, 1), (TRACE, 2)]


def made(*headers: tuple[str, bytes]) -> Record:
    return Record("t", "p", 0, 0, None, b"", headers)


def test_headers_that_carry_no_context_are_no_link(tower: str) -> None:
    wrong = [made(), made(("traceparent", b"\xff")), made(("traceparent", b"00-0-0-01")), made(("other", b"x"))]
    assert links_of(wrong) == []
    with current(5):
        assert links_of(wrong) == []
        assert trace.get_current_span(context_of(wrong[1])).get_span_context() == trace.INVALID_SPAN_CONTEXT
    with pytest.raises(UsageError, match="a header is a name and a value"):
        inject([("a",)])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="tracing is 'context' or 'spans'"):
        Producer("t", tower=tower, tracing="yes")  # type: ignore[arg-type]


class Recorded:
    """A tracer that remembers its spans; those of the API alone record nothing."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, SpanKind, dict[str, Any], int, list[int]]] = []
        self.ended = 0

    def start_span(self, name: str, context: Any = None, kind: Any = None, attributes: Any = None, links: Any = ()
    ) -> NonRecordingSpan:  # fmt: skip
        parent = trace.get_current_span(context).get_span_context().span_id
        self.spans.append((name, kind, attributes, parent, [each.context.span_id for each in links]))
        recorded = self

        class Span(NonRecordingSpan):
            def end(self, end_time: int | None = None) -> None:
                recorded.ended += 1

        return Span(SpanContext(TRACE, 100 + len(self.spans), is_remote=False, trace_flags=TraceFlags(1)))

    @contextmanager
    def start_as_current_span(self, name: str, **more: Any) -> Iterator[Any]:
        with trace.use_span(self.start_span(name, **more), end_on_exit=True) as span:
            yield span


def test_spans_are_made_where_they_are_asked_for(tower: str, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = Recorded()
    monkeypatch.setattr(trace, "get_tracer", lambda name: recorded)
    with Producer("t", tower=tower, tracing="spans") as producer:
        with current(7):
            producer.send("a")
        producer.flush(PATIENCE_S)
    (record,) = read(tower, 1)
    with processing(record):
        pass
    with processing(record, made()):
        pass
    sent, one, two = recorded.spans
    assert (sent[0], sent[1], sent[3]) == ("send t", SpanKind.PRODUCER, 7)
    assert sent[2]["messaging.destination.name"] == "t"
    assert (one[0], one[1], one[3], one[4]) == ("process t", SpanKind.CONSUMER, 101, [101])
    assert (two[2]["messaging.batch.message_count"], two[3], two[4]) == (2, 0, [101])
    assert recorded.ended == 3
