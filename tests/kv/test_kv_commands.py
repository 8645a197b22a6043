from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.data.scalars import Count
from chappe.errors import ProtocolError
from chappe.kv import commands as cmd
from chappe.kv.backend import HistoryRow
from chappe.kv.commands import Message, decode_message, encode_command, encode_message, wire
from chappe.kv.entity import NOBODY, Entity, chappe_entity, clone_topic, master_topic

VECTORS = Path(__file__).parent.parent / "vectors" / "broker"
COMMANDS: list[dict[str, Any]] = json.loads((VECTORS / "commands.json").read_text())
MASTER = Entity(bytes.fromhex("11111111222233334444555555555555"), 7)
CLONE = Entity(bytes.fromhex("aaaaaaaabbbb4ccc8dddeeeeeeeeeeee"), 9)
SECOND = 1_000_000_000

EXPECTED: dict[str, Message] = {
    "put": Message(3, MASTER, NOBODY, cmd.Put("key", Count(5), None, CLONE)),
    "put_expiry": Message(4, MASTER, NOBODY, cmd.Put("key", Count(5), SECOND, CLONE)),
    "put_unique": Message(2, CLONE, MASTER, cmd.PutUnique("key", Count(5), None, CLONE, 17, CLONE)),
    "put_unique_expiry": Message(2, CLONE, MASTER, cmd.PutUnique("key", Count(5), SECOND, CLONE, 17, CLONE)),
    "put_unique_result_true": Message(5, MASTER, NOBODY, cmd.PutUniqueResult(True, CLONE, 17, MASTER)),
    "put_unique_result_false": Message(6, MASTER, NOBODY, cmd.PutUniqueResult(False, CLONE, 17, MASTER)),
    "erase": Message(7, MASTER, NOBODY, cmd.Erase("key", CLONE)),
    "expire": Message(8, MASTER, NOBODY, cmd.Expire("key", MASTER)),
    "add": Message(3, CLONE, MASTER, cmd.Add("key", 1, 3, None, CLONE)),
    "add_string": Message(3, CLONE, MASTER, cmd.Add("key", "ar", 5, SECOND, CLONE)),
    "subtract": Message(4, CLONE, MASTER, cmd.Subtract("key", 1, None, CLONE)),
    "clear": Message(5, CLONE, MASTER, cmd.Clear(CLONE)),
    "attach_writer": Message(0, CLONE, MASTER, cmd.AttachWriter(1, 5)),
    "keepalive": Message(0, MASTER, NOBODY, cmd.Keepalive(9)),
    "cumulative_ack": Message(0, CLONE, MASTER, cmd.CumulativeAck(8)),
    "nack_0": Message(0, CLONE, NOBODY, cmd.MissingEvents((0,))),
    "nack_many": Message(0, CLONE, MASTER, cmd.MissingEvents((3, 4, 7))),
}


def pack(message: Message) -> bytes:
    return encode_message(message.seq, message.sender, message.receiver, encode_command(message.command))


def read(payload: bytes) -> Message:
    message = decode_message(payload)
    if isinstance(message.command, cmd.AckClone):
        message.command.pairs()  # they are read only when asked for
    if isinstance(message.command, cmd.SnapshotPiece):
        message.command.rows()
    if isinstance(message.command, cmd.HistoryTold):
        message.command.past()
    return message


@pytest.mark.parametrize("vector", COMMANDS, ids=lambda each: each["name"])
def test_golden_vectors_both_ways_and_cut_at_every_byte(vector: dict[str, Any]) -> None:
    wire = bytes.fromhex(vector["payload_hex"])
    message = decode_message(wire)

    assert pack(message) == wire
    if vector["name"] in EXPECTED:
        assert message == EXPECTED[vector["name"]]
    for length in range(len(wire)):
        with pytest.raises(ProtocolError):
            read(wire[:length])
    if not isinstance(message.command, cmd.AckClone):
        with pytest.raises(ProtocolError):
            decode_message(wire + b"\0")


def test_every_kind_has_a_vector_or_is_of_chappe_alone() -> None:
    seen = {type(decode_message(bytes.fromhex(vector["payload_hex"])).command) for vector in COMMANDS}

    of_chappe = {cmd.WriterState, cmd.Settled, cmd.Leave, cmd.SnapshotOffer, cmd.SnapshotPiece, cmd.SnapshotTaken}
    of_chappe |= {cmd.PositionAsked, cmd.Position, cmd.Expiring, cmd.ExpiresAt, cmd.PutIf, cmd.EraseIf}
    of_chappe |= {cmd.HistoryAsked, cmd.HistoryTold}
    assert set(wire._WRITERS) - seen == {*of_chappe, cmd.MasterSilent, cmd.ChangesOffer, cmd.Several}


PIECE = cmd.piece(
    3, 40, cmd.encode_pairs([cmd.encode_row(b"\x05\x01a\x00", 7, None), cmd.encode_row(b"\x05\x01b\x00", 8, 9)])
)


@pytest.mark.parametrize(
    "command",
    [
        cmd.WriterState(7, 9, ((5, 11), (6, 255))),
        cmd.WriterState(7, 9, ()),
        cmd.Settled(4),
        cmd.Leave(3),
        cmd.SnapshotOffer(3, 7, 10, 42, 5),
        cmd.ChangesOffer(3, 7, 10, 42, 5, 2, MASTER, 2**64 - 1),
        PIECE,
        cmd.SnapshotTaken(3, 42),
        cmd.SnapshotTaken(3, 40, again=True),
        cmd.MasterSilent(Entity(b"m" * 16, 7)),
        cmd.MissingEvents(()),
        cmd.PositionAsked(2**64 - 1),
        cmd.Position(3, 42),
        cmd.Expiring(2**62, cmd.Put("a", 1, SECOND, CLONE)),
        cmd.Expiring(-1, cmd.Add("b", "c", 5, None, CLONE)),
        cmd.ExpiresAt("a", 2**64 - 1, 2**62),
        cmd.PutIf("a", 1, SECOND, 2**63, CLONE),
        cmd.EraseIf("a", 0, CLONE),
        cmd.HistoryAsked(2**64 - 1, "a", 0),
        cmd.HistoryTold(3, cmd.ALL, cmd.encode_past(())),
        cmd.HistoryTold(3, cmd.MORE, cmd.encode_past([HistoryRow(b"", 7, b"body"), HistoryRow(b"", 9, b"")])),
        cmd.Several((cmd.Expiring(5, cmd.Subtract("a", 1, None, CLONE)), cmd.Erase("b", CLONE))),
        cmd.Several((cmd.Put("a", 1, None, CLONE), cmd.Put("b", 2, SECOND, MASTER), cmd.Clear(MASTER))),
        cmd.Several(
            (cmd.Erase("a", CLONE), cmd.Add("b", "c", 5, None, CLONE), cmd.PutUniqueResult(True, CLONE, 1, CLONE))
        ),
    ],
    ids=repr,
)
def test_what_chappe_adds_comes_back_and_is_refused_when_cut(command: cmd.Command) -> None:
    wire = pack(Message(0, MASTER, chappe_entity(CLONE.endpoint, 3), command))

    assert decode_message(wire).command == command
    for length in range(len(wire)):
        with pytest.raises(ProtocolError):
            read(wire[:length])


@pytest.mark.parametrize(
    "changes",
    [
        cmd.Keepalive(3),  # no change
        cmd.Several((cmd.Clear(MASTER),)),  # nor are several one
        cmd.PutIf("a", 1, None, 0, CLONE),  # which clones alone say
    ],
    ids=repr,
)
def test_several_hold_nothing_but_changes(changes: cmd.Command) -> None:
    with pytest.raises(ProtocolError, match="is not a change"):
        decode_message(
            encode_message(1, MASTER, NOBODY, cmd.encode_several([bytes(encode_command(changes)) + bytes(99)]))
        )


def test_more_changes_than_there_are_bytes_for_are_not_looked_for() -> None:
    body = bytes([cmd.SEVERAL, 0xFF, 0xFF, 0x7F]) + encode_command(cmd.Clear(MASTER))
    with pytest.raises(ProtocolError, match="claims"):
        decode_message(encode_message(1, MASTER, NOBODY, body))


def test_a_piece_with_a_flipped_bit_is_no_piece() -> None:
    wire = pack(Message(0, MASTER, chappe_entity(CLONE.endpoint, 3), PIECE))
    assert PIECE.rows() == [("a", None, 7, None), ("b", None, 8, 9)]
    for place in range(8 * (len(wire) - len(PIECE.raw_rows) - 4), 8 * len(wire)):
        flipped = bytearray(wire)
        flipped[place // 8] ^= 1 << place % 8
        with pytest.raises(ProtocolError):
            read(bytes(flipped))


def frames(stream: bytes) -> list[bytes]:
    found = []
    while len(stream) >= 4:
        size = int.from_bytes(stream[:4], "big")
        found.append(stream[4 : 4 + size])
        stream = stream[4 + size :]
    return found


def test_every_command_of_a_recorded_session_comes_back_byte_by_byte() -> None:
    session = json.loads((VECTORS / "session_store.json").read_text())
    kinds = set()
    for stream in session["raw_streams_hex"].values():
        for body in frames(bytes.fromhex(stream)):
            if len(body) >= 37 and body[32] == 2:
                payload = body[37 + int.from_bytes(body[35:37], "big") :]
                message = decode_message(payload)
                kinds.add(type(message.command))
                assert pack(message) == payload

    assert {cmd.AckClone, cmd.Put, cmd.PutUnique, cmd.PutUniqueResult, cmd.Expire, cmd.Clear, cmd.Add} <= kinds


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_invalid(noise: bytes) -> None:
    for payload in (noise, bytes(56) + noise, bytes(56) + bytes([cmd.SEVERAL]) + noise):
        try:
            read(payload)
        except ProtocolError:
            pass


def test_entities_of_chappe_know_each_other() -> None:
    assert chappe_entity(CLONE.endpoint, 2**32 + 5) == chappe_entity(CLONE.endpoint, 5)
    assert chappe_entity(CLONE.endpoint, 5).is_chappe
    assert not CLONE.is_chappe
    assert str(CLONE) == "9@aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee"


def test_stores_whose_names_end_with_a_slash_listen_where_those_of_the_original_do() -> None:
    assert master_topic(b"a/") == b"a//<$>/data/master"
    assert clone_topic(b"a/b") == b"a/b/<$>/data/clone"


def test_an_end_of_chappe_behind_an_original_is_taken_for_one_and_found_again() -> None:
    ours = chappe_entity(CLONE.endpoint, 5)
    came = decode_message(cmd.from_far(pack(Message(0, ours, MASTER, cmd.MissingEvents((0,))))))
    assert came.receiver == MASTER
    assert not came.sender.is_chappe
    assert str(came.sender) == str(ours)
    answer = decode_message(cmd.to_far(pack(Message(7, MASTER, came.sender, cmd.AckClone(7, 5, b"\0")))))
    assert answer == Message(7, MASTER, ours, cmd.AckClone(7, 5, b"\0"))
    for each in (MASTER, NOBODY):  # whoever else it is
        wire = pack(Message(0, each, each, cmd.Keepalive(1)))
        assert cmd.from_far(wire) == cmd.to_far(wire) == wire
