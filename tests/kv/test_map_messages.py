"""The messages of shared maps, against what the Guide's C programs send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import ProtocolError
from chappe.kv.chp import messages as chp
from chappe.kv.chp import stream as say

VECTORS = Path(__file__).parent.parent / "vectors" / "clone"


def golden() -> dict[str, list[bytes]]:
    found = json.loads((VECTORS / "golden-core.json").read_text())["vectors"]
    return {each["name"]: [bytes.fromhex(frame) for frame in each["frames_hex"]] for each in found}


def captured() -> list[list[bytes]]:
    """All messages of five frames in the sessions of the Guide's programs."""
    frames: list[list[bytes]] = []
    for name in ("model5", "model5-probe", "model6-session"):
        session: Any = json.loads((VECTORS / f"{name}.json").read_text())
        for connection in session["connections"]:
            for event in connection["events"]:
                message = [bytes.fromhex(frame) for frame in event.get("frames_hex", ())]
                if len(message) == 5:
                    frames.append(message)
    return frames


FIVE = sorted(name for name, frames in golden().items() if len(frames) == 5)


@pytest.mark.parametrize("name", FIVE)
def test_a_message_of_the_original_round_trips(name: str) -> None:
    frames = golden()[name]
    update = chp.decode_update(frames)
    again = chp.encode_update(update)

    assert chp.decode_update(again) == update
    assert sorted(again[3].split(b"\n")) == sorted(frames[3].split(b"\n"))
    assert [again[place] for place in (0, 1, 2, 4)] == [frames[place] for place in (0, 1, 2, 4)]


def test_a_snapshots_entry_has_the_very_bytes_of_the_original() -> None:
    frames = golden()["m5.kvsync.props"]

    assert chp.encode_update(chp.decode_update(frames)) == frames


def test_control_messages_are_those_of_the_original() -> None:
    frames = golden()

    assert chp.icanhaz(b"/client/") == frames["m4.icanhaz"]
    assert chp.icanhaz(b"") == frames["m5.icanhaz.empty"]
    assert chp.decode_icanhaz(frames["m5.icanhaz.empty"]) == b""
    assert chp.kthxbai(0, b"") == [*frames["m5.kthxbai"][:1], bytes(8), b"", b"", b""]
    with pytest.raises(ProtocolError):
        chp.decode_icanhaz(frames["m3.icanhaz"])


def test_every_captured_message_is_understood() -> None:
    for frames in captured():
        chp.decode_update(frames)


def test_our_heartbeat_is_read_over_by_others_and_understood_here() -> None:
    beat = chp.Beat(bytes(range(16)), 77, 250, True)
    frames = chp.hugz(beat)

    assert len(frames) == 5
    assert frames[0] == b"HUGZ"
    assert frames[1] == bytes(8)  # nobody takes it for an update
    assert frames[4] == b""
    assert chp.beat_of(chp.decode_update(frames)) == beat
    assert chp.beat_of(chp.decode_update(golden()["m6.hugz.seq"])) is None


def test_the_heartbeat_of_one_of_a_pair_tells_its_role_and_where_the_witness_is() -> None:
    alone = chp.hugz(chp.Beat(bytes(16), 7, 250, True))
    paired = chp.Beat(bytes(16), 7, 250, False, "backup", "judge@host-c:5576")

    assert alone[3] == b"chappe=1\nstate=active\nsequence=7\nevery=250\n"  # as ever
    assert chp.beat_of(chp.decode_update(chp.hugz(paired))) == paired
    long = chp.hugz(chp.Beat(bytes(16), 7, 250, False, "backup", "h" * 5_000))
    found = chp.beat_of(chp.decode_update(long))
    assert found is not None
    assert len(found.witness) == chp.BEAT_TEXT_MAX


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (b"7", 7000), (b"0", None), (b"", None), (b"soon", None), (b"nan", None), (b"-1", 0), (b"12.5", 12_500),
        (b"5184000", 60 * 86_400_000), (b"1795222051230", 51_230), (b"1795222030.5", 30_500), (b"1795221000000", 0),
        (b"9" * 40, chp.TTL_MS_MAX),
    ],
)  # fmt: skip
def test_a_ttl_is_seconds_or_a_moment(text: bytes, left: int | None) -> None:
    assert chp.ttl_ms(text, 1_795_222_000_000) == left


@pytest.mark.parametrize(
    "frames",
    [
        [], [b"k"], [b"k", bytes(8), b""], [b"k", bytes(8), b"", b"", b"", b""], [b"k", bytes(4), b"", b"", b"x"],
        [b"k", bytes(8), b"short", b"", b"x"], [bytes(20_000), bytes(8), b"", b"", b"x"],
        [b"k", bytes(8), b"", bytes(100_000), b"x"],
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(frames: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        chp.decode_update(frames)


def test_malformed_properties_are_left_out() -> None:
    assert chp.split_properties(b"a=1\nttl=5\nnothing\n=x\nb\0=2\nc=3=4\ncut=off") == (b"a=1\nc=3=4\n", b"5")


@given(st.integers(0, 2**48 - 1), st.binary(min_size=10, max_size=10))
def test_a_writers_uuid_tells_writer_and_number(number: int, random: bytes) -> None:
    session = chp.session_of(random)

    assert chp.writer_of(chp.uuid_of(session, number)) == (session, number)


def test_other_uuids_have_no_writer() -> None:
    assert [chp.writer_of(frames[2]) for frames in captured() if frames[2]] == [None] * sum(
        bool(frames[2]) for frames in captured()
    )


@given(st.lists(st.binary(max_size=300), max_size=7))
def test_any_frames_are_a_message_or_refused(frames: list[bytes]) -> None:
    for decode in (chp.decode_update, chp.decode_icanhaz, say.from_client, say.from_server):
        try:
            decode(frames)
        except ProtocolError:
            pass


SEEDS = [
    say.encode(say.Hello(1, bytes(10), (b"/a/",), b"", 0, 0)),
    say.encode(say.Taken(1, 5, 2, 9)),
    say.encode(say.Steps(1, 1, (say.Step(((b"k", b"v", 0, b""),), ((b"k", b""),)),))),
    say.encode(say.Welcome(1, 0, bytes(16), 5, 0, True)),
    say.encode(say.Piece(1, 1, say.encode_entries([(b"k", b"v", b"", b"", 0)]))),
    say.encode(say.Whole(1, 2, 1, 77, 5, ((bytes(10), 3, ((2, 1, "no"),)),))),
    say.encode(say.Changes(1, 3, 6, say.NO_UPDATES, 1, ((1, 12, "no"),))),
    say.encode(say.Outcomes(1, 4, ((bytes(10), 3, 1, "no"),))),
    say.encode(say.Goodbye(1)),
]


@given(st.sampled_from(SEEDS), st.data())
def test_a_changed_byte_is_a_message_or_refused(seed: list[bytes], data: st.DataObject) -> None:
    raw = bytearray(seed[1])
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    for decode in (say.from_client, say.from_server):
        try:
            message = decode([say.MARK, bytes(raw)])
        except ProtocolError:
            continue
        if isinstance(message, say.Piece | say.Changes):
            entries = message.entries if isinstance(message, say.Piece) else message.updates
            try:
                say.decode_entries(entries)
            except ProtocolError:
                pass


@pytest.mark.parametrize("seed", SEEDS)
def test_a_message_of_a_stream_round_trips(seed: list[bytes]) -> None:
    decode = say.from_client if seed[1][1] < 16 else say.from_server

    assert say.encode(decode(seed)) == seed
