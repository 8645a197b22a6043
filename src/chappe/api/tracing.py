"""OpenTelemetry's trace context in the headers of records, from who sends them to who reads them.

W3C's ``traceparent`` and what else the propagator of the program has (``tracestate``, ``baggage``).
It needs ``pip install 'chappe[tracing]'``. Producers that are not told to (``tracing=``) do nothing and pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from chappe.errors import BufferFull, Sealed, UsageError
from chappe.log.batch import as_headers

try:
    from opentelemetry import propagate, trace
    from opentelemetry.propagators.textmap import Getter, Setter
    from opentelemetry.trace import Link, SpanKind
except ImportError as problem:
    raise UsageError(f"tracing needs {problem.name}: pip install 'chappe[tracing]'") from None

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from chappe.log.batch import Record

Headers: TypeAlias = Mapping[str, bytes | str] | Iterable[tuple[str, bytes | str]] | None
_NAME: Final = "chappe"


class _HeaderSetter(Setter["dict[str, bytes]"]):
    def set(self, carrier: dict[str, bytes], key: str, value: str) -> None:
        carrier[key] = value.encode()


class _HeaderGetter(Getter["Record"]):
    def get(self, carrier: Record, key: str) -> list[str] | None:
        found = [value.decode("utf-8", "replace") for name, value in carrier.headers if name.lower() == key]
        return found or None

    def keys(self, carrier: Record) -> list[str]:
        return [name for name, _ in carrier.headers]


def inject(headers: Headers = None) -> list[tuple[str, bytes]]:
    """Return headers with the trace context of this moment, in the place of one that they have.

    For producers that are not told to do it (``tracing=``), such as ``OrderedProducer``. Raises UsageError for headers
    that are none.
    """
    carried: dict[str, bytes] = {}
    propagate.inject(carried, setter=_HeaderSetter())
    return [*(each for each in as_headers(headers) if each[0] not in carried), *carried.items()]


def context_of(record: Record) -> Context:
    """Return the context that a record carries, to start a span in; an empty one if it carries none, or a wrong one."""
    return propagate.extract(record, getter=_HeaderGetter())


def links_of(records: Iterable[Record]) -> list[Link]:
    """Return a link to the sender of each record that carries a context, each span once."""
    found = [trace.get_current_span(context_of(each)).get_span_context() for each in records]
    contexts = {each.span_id: each for each in found}
    return [Link(each) for each in contexts.values() if each.is_valid]


@contextmanager
def processing(*records: Record) -> Iterator[Span]:
    """Make a span of what is done with records, in the trace of a single one's sender, with links to all senders."""
    topics = {each.topic for each in records}
    topic = topics.pop() if len(topics) == 1 else None
    attributes = _attributes("process", topic) | {"messaging.batch.message_count": len(records)}
    with trace.get_tracer(_NAME).start_as_current_span(
        f"process {topic}" if topic else "process",
        context=context_of(records[0]) if len(records) == 1 else None,
        kind=SpanKind.CONSUMER,
        attributes=attributes,
        links=links_of(records),
    ) as span:
        yield span


def traced(send: Callable[..., int], own_topic: str | None, spans: bool) -> Callable[..., int]:
    """Return ``send`` of a producer with the trace context in the headers, with ``spans`` also a span each."""

    def traced_send(
        value: bytes | str | None,
        key: bytes | str | None = None,
        headers: Headers = None,
        timestamp: int | datetime | None = None,
        topic: str | None = None,
    ) -> int:
        if not spans:
            return send(value, key, inject(headers), timestamp, topic)
        name = topic or own_topic
        tracer = trace.get_tracer(_NAME)
        span = tracer.start_span(f"send {name}", kind=SpanKind.PRODUCER, attributes=_attributes("send", name))
        with trace.use_span(span):
            try:
                offset = send(value, key, inject(headers), timestamp, topic)
            except (BufferFull, Sealed):
                raise  # asyncio's face asks again, and a span that is not ended is told nobody
            except BaseException:
                span.end()
                raise
        span.end()
        return offset

    return traced_send


def _attributes(operation: str, topic: str | None) -> dict[str, Any]:
    return {
        "messaging.system": _NAME,
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
    } | ({} if topic is None else {"messaging.destination.name": topic})
