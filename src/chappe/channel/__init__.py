"""A reliable, ordered channel from one producer to any number of consumers, over a transport that is neither.

The transport may lose, repeat and reorder messages. The producer numbers its events and keeps them until every
consumer has acknowledged them; a consumer hands them on in order, each once, and asks again for what is missing.

=================== ========== =======================================================================
message             from       meaning
=================== ========== =======================================================================
``Handshake``       producer   events after ``offset`` are yours; acknowledge what is new every ``heartbeat_s``
``Event``           producer   number ``seq``; the first is 2, since 1 is "nothing yet"
``Heartbeat``       producer   the last event was ``seq``; so a lost last one is noticed
``RetransmitFailed`` producer  number ``seq`` is gone for good, or the producer does not know the consumer
``Ack``             consumer   everything up to ``seq`` has arrived; also its sign of life
``Nack``            consumer   these are missing, everything before the first has arrived; (0,) asks for a handshake
=================== ========== =======================================================================

Both ends are cores: they return what is to be sent (``ToAll``, ``ToConsumer``, ``ToProducer``) and what has happened.
The transport knows who sends; a consumer must be given the messages of its own producer only.

The owner of a producer is told when a consumer has acknowledged its handshake (``HandshakeCompleted``). A consumer asks
its owner about an event that is gone for good (``Lost``) before it hands on the next one: ``skip_lost`` goes on behind
it, ``close`` ends the consumer (``ConsumerClosed``).

Bounds: a producer keeps at most ``events_max`` events and ``bytes_max`` bytes. At the bound it drops the consumer that
is furthest behind (``Dropped``), which learns of it with its next message and may begin anew. A *lasting* producer
never drops: it keeps events for a consumer that is yet to come, and refuses more with ``BufferFull``. A consumer holds
at most ``held_max`` events beyond a gap and lets go of further ones, which the producer sends again when asked.

Source: Zeek Broker, ``channel.hh``; the same messages. Departures: seconds for ticks; all buffers bounded; an unknown
consumer is told so; an early heartbeat after the last of a burst; acknowledgements also by count; a new handshake
starts from now; a consumer notices that its producer is silent.

messages.py  the messages, and what both ends ask of their owners
producer.py  the sending end
consumer.py  the receiving end
"""

from __future__ import annotations

from chappe.channel.consumer import ChannelConsumer
from chappe.channel.messages import (
    ASK_HANDSHAKE,
    FIRST,
    Ack,
    Consume,
    ConsumerAction,
    ConsumerClosed,
    Dropped,
    Event,
    Handshake,
    HandshakeCompleted,
    Heartbeat,
    Lost,
    Nack,
    ProducerAction,
    ProducerSilent,
    RetransmitFailed,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.channel.producer import ChannelProducer

__all__ = [
    "ASK_HANDSHAKE",
    "FIRST",
    "Ack",
    "ChannelConsumer",
    "ChannelProducer",
    "Consume",
    "ConsumerAction",
    "ConsumerClosed",
    "Dropped",
    "Event",
    "Handshake",
    "HandshakeCompleted",
    "Heartbeat",
    "Lost",
    "Nack",
    "ProducerAction",
    "ProducerSilent",
    "RetransmitFailed",
    "ToAll",
    "ToConsumer",
    "ToProducer",
]
