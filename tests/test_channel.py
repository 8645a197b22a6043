from __future__ import annotations

from collections.abc import Callable
from math import inf

import pytest

from chappe.channel import (
    Ack,
    ChannelConsumer,
    ChannelProducer,
    Consume,
    ConsumerClosed,
    Dropped,
    Event,
    Handshake,
    HandshakeCompleted,
    Heartbeat,
    Lost,
    Nack,
    ProducerSilent,
    RetransmitFailed,
    ToAll,
    ToConsumer,
    ToProducer,
)
from chappe.defaults import CHANNEL_CALM_S
from chappe.errors import BrokenClone, BufferFull, ErrorCode

Producer = ChannelProducer[str, str]


def producer(**options: object) -> Producer:
    return ChannelProducer(len, now=0.0, **options)  # type: ignore[arg-type]


def consumer(**options: float) -> ChannelConsumer[str]:
    made: ChannelConsumer[str] = ChannelConsumer(now=0.0, **options)  # type: ignore[arg-type]
    made.take_handshake(1, 1.0, 0.0)
    return made


def test_the_first_event_has_number_2_and_goes_to_all() -> None:
    channel = producer()

    assert channel.produce("nobody hears it", 0.0) == []
    assert channel.add("a", 0.0) == [ToConsumer("a", Handshake(1, 1.0))]
    assert channel.produce("x", 0.0) == [ToAll(Event(2, "x"))]


def test_events_are_kept_until_everybody_has_them() -> None:
    channel = producer()
    channel.add("a", 0.0)
    channel.add("b", 0.0)
    for payload in "xyz":
        channel.produce(payload, 0.0)

    channel.take_ack("a", 4, 0.0)
    assert channel.kept == (3, 3)
    channel.take_ack("b", 3, 0.0)
    assert channel.kept == (1, 1)
    assert not channel.idle()
    channel.take_ack("b", 4, 0.0)
    assert channel.idle()
    assert channel.kept == (0, 0)


def test_what_was_not_sent_yet_is_not_acknowledged() -> None:
    channel = producer()
    channel.add("a", 0.0)
    channel.produce("x", 0.0)
    channel.take_ack("a", 3, 0.0)
    channel.produce("y", 0.0)
    assert channel.kept == (2, 2)


def test_what_is_asked_for_is_sent_again_or_said_to_be_gone() -> None:
    channel = producer()
    channel.add("a", 0.0)
    for payload in "xyz":
        channel.produce(payload, 0.0)
    channel.take_ack("a", 2, 0.0)

    assert channel.take_nack("a", (3,), 0.0) == [ToConsumer("a", Event(3, "y"))]
    assert channel.take_nack("a", (2, 4), 0.0) == [
        ToConsumer("a", RetransmitFailed(2)),
        ToConsumer("a", Event(4, "z")),
    ]


def test_a_nack_confirms_what_comes_before_only_if_it_may() -> None:
    channel = producer(lasting=True)
    channel.add("a", 0.0)
    for text in ("x", "y"):
        channel.produce(text, 0.0)

    assert channel.take_nack("a", (3,), 0.1, confirms=False) == [ToConsumer("a", Event(3, "y"))]
    assert channel.kept == (2, 2)
    channel.take_nack("a", (3,), 0.2)
    assert channel.kept == (1, 1)


def test_a_nack_out_of_order_ends_the_connection() -> None:
    channel = producer()
    channel.add("a", 0.0)
    channel.produce("x", 0.0)

    assert channel.take_nack("a", (3, 2), 0.0) == [Dropped("a", "its nack is not in order", ErrorCode.INVALID_MESSAGE)]
    assert channel.consumers == ()


def test_who_is_not_known_is_told_so() -> None:
    assert producer().take_ack("a", 5, 0.0) == [ToConsumer("a", RetransmitFailed(6))]
    assert producer().take_nack("a", (5,), 0.0) == [ToConsumer("a", RetransmitFailed(5))]


def test_at_the_bound_the_slowest_consumer_is_dropped() -> None:
    channel = producer(events_max=2)
    channel.add("slow", 0.0)
    channel.add("fast", 0.0)
    for payload in "xy":
        channel.produce(payload, 0.0)
    channel.take_ack("fast", 3, 0.0)

    actions = channel.produce("z", 0.0)
    assert [type(each) for each in actions] == [ToAll, Dropped]
    assert channel.consumers == ("fast",)
    assert channel.kept == (1, 1)


def test_a_silent_consumer_is_dropped_and_frees_the_buffer() -> None:
    channel = producer(silent_s=5.0)
    channel.add("a", 0.0)
    channel.produce("x", 4.0)

    assert channel.next_timeout() == 4.25
    assert channel.tick(4.25) == [ToAll(Heartbeat(2))]
    assert channel.next_timeout() == 5.0
    assert [type(each) for each in channel.tick(5.0)] == [Dropped]
    assert channel.kept == (0, 0)


def test_a_lasting_producer_keeps_refuses_and_replays_in_windows() -> None:
    channel = producer(lasting=True, events_max=3, window=2)
    for payload in "xyz":
        assert channel.produce(payload, 0.0) == []
    with pytest.raises(BufferFull):
        channel.produce("one too many", 0.0)

    assert channel.add("a", 0.0, replay=True) == [
        ToConsumer("a", Handshake(1, 1.0)),
        ToConsumer("a", Event(2, "x")),
        ToConsumer("a", Event(3, "y")),
    ]
    assert channel.tick(0.25) == [ToConsumer("a", Handshake(1, 1.0)), ToAll(Heartbeat(3))]
    assert channel.take_ack("a", 2, 0.3) == [HandshakeCompleted("a"), ToConsumer("a", Event(4, "z"))]
    assert channel.produce("next", 0.3) == []
    assert channel.take_ack("a", 4, 0.4) == [ToConsumer("a", Event(5, "next"))]


def test_the_first_acknowledgement_of_each_handshake_is_told() -> None:
    channel = producer()
    for name in "ab":
        channel.add(name, 0.0)
    channel.produce("x", 0.0)

    assert channel.take_ack("a", 9, 0.1) == []  # nobody can have that
    assert channel.take_ack("a", 1, 0.1) == [HandshakeCompleted("a")]
    assert channel.take_ack("a", 2, 0.2) == []
    assert channel.take_nack("b", (2,), 0.2) == [HandshakeCompleted("b"), ToConsumer("b", Event(2, "x"))]
    channel.take_nack("a", (0,), 0.3)
    assert channel.take_ack("a", 2, 0.4) == [HandshakeCompleted("a")]
    channel.drop("a", "it is gone")
    assert HandshakeCompleted("a") not in channel.take_ack("a", 2, 0.5)


def test_a_lasting_producer_takes_no_more_bytes_than_it_may_keep() -> None:
    channel = producer(lasting=True, bytes_max=10)
    channel.produce("sixsix", 0.0)
    assert channel.room(4)
    assert not channel.room(5)


def test_events_come_out_in_order_each_once() -> None:
    channel = consumer()

    assert channel.take_event(3, "y", 0.0) == []
    assert channel.take_event(3, "y", 0.0) == []
    assert channel.take_event(2, "x", 0.0) == [Consume(2, "x"), Consume(3, "y")]
    assert channel.take_event(2, "x", 0.0) == []
    assert channel.idle()


def test_a_gap_is_asked_for_after_some_time_without_progress() -> None:
    channel = consumer(nack_s=0.2)
    channel.take_event(3, "y", 0.1)
    channel.take_event(6, "z", 0.1)

    assert channel.next_timeout() == pytest.approx(0.3)
    assert channel.tick(0.31) == [ToProducer(Nack((2, 4, 5)))]
    assert channel.tick(0.4) == []
    channel.take_event(2, "x", 0.45)
    assert channel.tick(0.5) == []
    assert channel.tick(0.66) == [ToProducer(Nack((4, 5)))]


def test_what_one_nack_cannot_hold_is_asked_for_when_the_rest_has_come() -> None:
    channel = consumer(nack_s=0.2, nack_max=2)
    channel.take_heartbeat(7, 0.0)

    assert channel.tick(0.2) == [ToProducer(Nack((2, 3)))]
    channel.take_event(2, "x", 0.21)
    assert channel.tick(0.21) == []
    channel.take_event(3, "y", 0.22)
    assert channel.next_timeout() == 0.22
    assert channel.tick(0.22) == [ToProducer(Nack((4, 5)))]
    channel.take_event(4, "x", 0.221)
    channel.take_event(5, "y", 0.221)
    assert channel.next_timeout() == pytest.approx(0.23)  # however fast it is answered


def test_what_is_held_behind_events_that_will_not_come_is_handed_on() -> None:
    channel = consumer()
    for seq in (4, 6, 7):
        channel.take_event(seq, str(seq), 0.0)

    assert channel.skip_to(5, 0.1) == [Consume(6, "6"), Consume(7, "7")]
    assert channel.skip_to(3, 0.1) == []
    assert channel.idle()


def test_what_has_come_is_handed_on_though_it_cannot_be_had_again() -> None:
    channel = consumer()
    channel.take_event(3, "y", 0.0)
    channel.take_retransmit_failed(3, 0.1)
    assert channel.take_event(2, "x", 0.1) == [Consume(2, "x"), Consume(3, "y")]


def test_a_lost_last_event_is_noticed_by_the_heartbeat() -> None:
    channel = consumer(nack_s=0.2)
    channel.take_event(2, "x", 0.1)

    assert channel.take_heartbeat(3, 0.5) == []
    assert not channel.idle()
    assert channel.tick(0.71) == [ToProducer(Nack((3,)))]


def test_a_heartbeat_brings_the_acknowledgement_forward() -> None:
    channel = consumer()
    channel.take_event(2, "x", 0.1)

    assert channel.take_heartbeat(2, 0.2) == [ToProducer(Ack(2))]
    assert channel.take_heartbeat(2, 0.3) == []


def test_what_is_gone_for_good_is_told_in_its_place() -> None:
    channel = consumer()
    channel.take_event(4, "z", 0.0)

    assert channel.take_retransmit_failed(3, 0.0) == []
    assert channel.take_event(2, "x", 0.0) == [Consume(2, "x"), Lost(3)]
    assert channel.skip_lost(0.1) == [Consume(4, "z")]
    assert channel.skip_lost(0.1) == []
    assert channel.idle()


def test_nothing_is_handed_on_behind_a_lost_event_before_its_owner_has_decided() -> None:
    channel = consumer(nack_s=0.2)
    channel.take_event(4, "4", 0.0)
    assert channel.take_retransmit_failed(2, 0.0) == [Lost(2)]

    assert channel.take_event(2, "2", 0.1) == []  # too late
    assert channel.take_event(3, "3", 0.1) == []
    assert channel.take_retransmit_failed(2, 0.1) == []
    assert channel.tick(1.0) == [ToProducer(Ack(1))]  # not of what may be given up
    assert not channel.idle()
    assert channel.skip_lost(1.1) == [Consume(3, "3"), Consume(4, "4")]


def test_events_lost_in_a_row_are_asked_about_one_by_one() -> None:
    channel = consumer()
    for seq in (4, 3):
        assert channel.take_retransmit_failed(seq, 0.0) == []
    assert channel.take_retransmit_failed(2, 0.0) == [Lost(2)]
    assert [channel.skip_lost(0.1) for _ in range(4)] == [[Lost(3)], [Lost(4)], [], []]
    assert channel.idle()


def test_an_owner_that_needs_every_event_closes_the_consumer() -> None:
    channel = consumer(silent_s=3.0)
    channel.take_event(3, "y", 0.0)
    channel.take_retransmit_failed(2, 0.0)
    error = BrokenClone("event 2 is gone")

    assert channel.close(error) == [ConsumerClosed(error)]
    assert channel.close(error) == []
    assert channel.closed
    assert channel.next == 3  # where one that replaces it goes on
    assert channel.take_event(3, "y", 1.0) == channel.take_heartbeat(9, 1.0) == channel.skip_lost(1.0) == []
    assert channel.take_handshake(1, 1.0, 1.0) == channel.tick(100.0) == channel.skip_to(9, 1.0) == []
    assert channel.next_timeout() == inf
    assert channel.held == channel.behind == 0
    assert channel.invariants() == []


def test_what_lies_before_a_new_beginning_need_not_be_decided() -> None:
    channel = consumer()
    channel.take_event(5, "5", 0.0)
    channel.take_retransmit_failed(2, 0.0)
    assert channel.skip_to(4, 0.1) == [Consume(5, "5")]
    assert channel.skip_lost(0.1) == []


def test_events_before_the_handshake_wait_for_it() -> None:
    channel: ChannelConsumer[str] = ChannelConsumer(now=0.0)
    channel.take_event(5, "old", 0.0)
    channel.take_event(7, "next", 0.0)

    assert channel.take_handshake(6, 1.0, 0.0) == [Consume(7, "next"), ToProducer(Ack(7))]
    assert channel.take_handshake(1, 1.0, 0.0) == [ToProducer(Ack(7))]


def test_before_the_handshake_it_is_asked_for_less_and_less_often() -> None:
    channel: ChannelConsumer[str] = ChannelConsumer(now=0.0, nack_s=0.2, search_max_s=1.0)
    asked = []
    for _ in range(5):
        asked.append(channel.next_timeout())
        assert channel.tick(asked[-1]) == [ToProducer(Nack((0,)))]

    assert asked == pytest.approx([0.0, 0.2, 0.6, 1.4, 2.4])


def test_only_so_many_events_are_held_beyond_a_gap() -> None:
    channel = consumer(held_max=2)
    for seq in (3, 4, 5, 6):
        channel.take_event(seq, str(seq), 0.0)

    assert channel.held == 2
    assert channel.take_event(2, "2", 0.0) == [Consume(2, "2"), Consume(3, "3"), Consume(4, "4")]
    assert channel.tick(1.5)[0] == ToProducer(Nack((5, 6)))


def test_a_silent_producer_is_noticed_once_each_time() -> None:
    channel = consumer(silent_s=3.0)

    assert channel.tick(1.0) == [ToProducer(Ack(1))]
    assert ProducerSilent() in channel.tick(3.0)
    assert ProducerSilent() not in channel.tick(9.0)
    channel.take_heartbeat(1, 10.0)
    assert ProducerSilent() in channel.tick(13.0)


def test_many_events_are_acknowledged_before_the_heartbeat() -> None:
    channel = consumer()
    answers = [each for seq in range(2, 1000) for each in channel.take_event(seq, "x", 0.0)]

    assert [each for each in answers if isinstance(each, ToProducer)] == [
        ToProducer(Ack(seq)) for seq in (257, 513, 769)
    ]


def test_a_consumer_that_asks_anew_keeps_nothing_back() -> None:
    channel = producer(events_max=2)
    channel.add("one", 0.0)
    for name in "ab":
        channel.produce(name, 0.0)
    channel.take_nack("one", (0,), 0.0)

    assert channel.kept[0] == 0
    assert channel.produce("c", 0.0) == [ToAll(Event(4, "c"))]


def beats(channel: Producer, until: float, reached: Callable[[int], object] = lambda seq: None) -> list[float]:
    """When it sends heartbeats until then; each is handed to ``reached``."""
    found = []
    while (now := channel.next_timeout()) <= until:
        for action in channel.tick(now):
            if isinstance(action, ToAll) and isinstance(action.message, Heartbeat):
                found.append(now)
                reached(action.message.seq)
    return found


def acks(channel: ChannelConsumer[str], until: float) -> list[float]:
    """When it acknowledges until then."""
    found = []
    while (now := channel.next_timeout()) <= until:
        found += [now for action in channel.tick(now) if isinstance(action, ToProducer)]
    return found


def test_an_idle_pair_says_less_than_one_message_in_two_seconds_each_way() -> None:
    sender, receiver = producer(calm_s=CHANNEL_CALM_S, silent_s=1000.0), consumer(calm_s=CHANNEL_CALM_S)
    sender.add("a", 0.0)
    sender.take_ack("a", 1, 0.0)
    said: list[int] = []
    sent, answered = beats(sender, 120.0, said.append), acks(receiver, 120.0)

    assert set(said) == {1}
    assert max(len([at for at in times if at > 20.0]) for times in (sent, answered)) <= 100 / CHANNEL_CALM_S + 1
    assert min(len(times) for times in (sent, answered)) >= 120 / CHANNEL_CALM_S  # and yet both show that they live


def test_until_everybody_has_everything_heartbeats_are_as_frequent_as_ever() -> None:
    channel = producer(calm_s=CHANNEL_CALM_S, silent_s=1000.0)
    channel.add("a", 0.0)
    channel.add("b", 0.0)
    for each in "ab":
        channel.take_ack(each, 1, 0.0)
    beats(channel, 50.0)
    channel.produce("x", 50.0)
    channel.take_ack("a", 2, 50.0)
    assert beats(channel, 55.0) == [50.25, 51.25, 52.25, 53.25, 54.25]  # b may have lost it, and may lose some of these

    channel.take_ack("b", 2, 55.0)
    assert beats(channel, 58.0) == pytest.approx([55.25, 55.25 + CHANNEL_CALM_S])


def test_what_a_calm_producer_sends_is_told_of_as_early_and_as_often_as_by_any_other() -> None:
    channel = producer(calm_s=CHANNEL_CALM_S, silent_s=1000.0)
    channel.add("a", 0.0)
    channel.take_ack("a", 1, 0.0)
    beats(channel, 50.0)
    channel.produce("x", 50.0)
    channel.take_ack("a", 2, 50.1)

    assert beats(channel, 53.0) == [50.25, 51.25, 52.25]  # one or two of them may be lost
    assert beats(channel, 55.0) == pytest.approx([52.25 + CHANNEL_CALM_S])


def test_who_joins_a_calm_producer_need_not_wait_for_its_heartbeat() -> None:
    channel = producer(calm_s=CHANNEL_CALM_S, silent_s=1000.0)
    channel.add("a", 0.0)
    channel.take_ack("a", 1, 0.0)
    last = beats(channel, 50.0)[-1]
    channel.add("b", last + 0.1)

    assert beats(channel, last + 1.5) == [last + 1.1]


def test_an_acknowledgement_is_said_again_soon_until_it_has_been_said_often() -> None:
    channel = consumer(calm_s=CHANNEL_CALM_S)
    last = acks(channel, 50.0)[-1]
    channel.take_event(2, "x", last + 0.5)

    assert acks(channel, last + 4.5) == pytest.approx(
        [last + each for each in (1.0, 2.0, 3.0, 4.0)]
    )  # some may be lost
    assert acks(channel, last + 7.0) == pytest.approx([last + 4.0 + CHANNEL_CALM_S])


def test_a_producer_that_asks_for_frequent_acknowledgements_gets_them() -> None:
    channel: ChannelConsumer[str] = ChannelConsumer(now=0.0, calm_s=CHANNEL_CALM_S)
    channel.take_handshake(1, 0.5, 0.0)

    assert len(acks(channel, 20.0)) == 40
