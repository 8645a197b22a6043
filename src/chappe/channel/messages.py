"""Messages between the two ends of a channel, and effects for their owners."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from chappe.errors import ChappeError, ErrorCode

H = TypeVar("H", bound=Hashable)  # how the owner names a consumer
P = TypeVar("P")  # what an event carries

ASK_HANDSHAKE: Final = (0,)
FIRST: Final = 1  # the number before the first event
SEQ_MAX: Final = 2**64 - 1  # what a number has room for; no channel comes near it


class Handshake(msgspec.Struct, frozen=True):
    """Events after ``offset`` are for the consumer, which acknowledges every ``heartbeat_s``."""

    offset: int
    heartbeat_s: float


class Event(msgspec.Struct, Generic[P], frozen=True):
    seq: int
    payload: P


class Heartbeat(msgspec.Struct, frozen=True):
    """The producer lives; its last event was ``seq``."""

    seq: int


class RetransmitFailed(msgspec.Struct, frozen=True):
    """Event ``seq`` cannot be had any more."""

    seq: int


class Ack(msgspec.Struct, frozen=True):
    """Everything up to ``seq`` has arrived."""

    seq: int


class Nack(msgspec.Struct, frozen=True):
    """The events ``seqs`` are missing; ``ASK_HANDSHAKE`` asks for a handshake."""

    seqs: tuple[int, ...]


class ToAll(msgspec.Struct, frozen=True):
    message: Event[Any] | Heartbeat


class ToConsumer(msgspec.Struct, Generic[H], frozen=True):
    consumer: H
    message: Event[Any] | Handshake | RetransmitFailed


class HandshakeCompleted(msgspec.Struct, Generic[H], frozen=True):
    """A consumer has acknowledged its handshake: said once for each handshake, with the first acknowledgement."""

    consumer: H


class Dropped(msgspec.Struct, Generic[H], frozen=True):
    """The producer has forgotten a consumer; ``reason`` is one sentence, ``code`` one of ``ErrorCode``."""

    consumer: H
    reason: str
    code: int = ErrorCode.UNSPECIFIED


class ToProducer(msgspec.Struct, frozen=True):
    message: Ack | Nack


class Consume(msgspec.Struct, Generic[P], frozen=True):
    """The next event in order."""

    seq: int
    payload: P


class Lost(msgspec.Struct, frozen=True):
    """Event ``seq`` is gone for good. Nothing follows until the owner calls ``skip_lost`` or ``close``."""

    seq: int


class ConsumerClosed(msgspec.Struct, frozen=True):
    """The owner has closed the consumer, because of ``error``."""

    error: ChappeError


class ProducerSilent(msgspec.Struct, frozen=True):
    """Nothing has been heard of the producer for ``silent_s``; said once each time."""


ProducerAction: TypeAlias = ToAll | ToConsumer[H] | HandshakeCompleted[H] | Dropped[H]
ConsumerAction: TypeAlias = ToProducer | Consume[P] | Lost | ConsumerClosed | ProducerSilent
