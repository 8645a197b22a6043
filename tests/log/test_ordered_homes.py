"""Exactly-once queries at a chain: who may write, what is staged, what is committed, and what is let go of."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.log.test_ordered_machine import SEED, Shelf, body, do

from chappe.log.batch import encode_sealed
from chappe.log.ordered import homes
from chappe.log.ordered.commands import (
    Answer,
    BeginRun,
    Begun,
    Command,
    CommitRows,
    Committed,
    Create,
    Describe,
    DropRows,
    Fences,
    Full,
    Layout,
    Missing,
    Refused,
    Repeats,
    Staged,
    StageRows,
    decode_answer,
    decode_command,
    encode,
)
from chappe.log.ordered.machine import OrderedLog

S = 1_000_000
Attempts = tuple[tuple[int, int, int, int], ...]


class Home:
    """A machine with a topic of two partitions, and the time."""

    def __init__(self) -> None:
        self.shelf = Shelf()
        self.log = OrderedLog(self.shelf)
        self.do(Create(b"t", 2, SEED))

    def do(self, command: Command, at_s: float = 0.0) -> Answer:
        self.log.now_us = int(at_s * S)
        return do(self.log, command)

    def begin(
        self, run: str = "r", sink: str = "q", batch: int = 0, *, origins: Sequence[str] = (), again: str = "",
        lasting: bool = True, at_s: float = 0.0,
    ) -> Answer:  # fmt: skip
        return self.do(BeginRun(sink, run, batch, lasting, tuple(origins), again), at_s)

    def stage(
        self, *values: bytes, run: str = "r", sink: str = "q", batch: int = 0, task: int = 0, attempt: int = 0,
        piece: int = 0, part: int = 0, at_s: float = 0.0,
    ) -> Answer:  # fmt: skip
        return self.do(StageRows(sink, run, batch, task, attempt, piece, b"t", part, body(*values)), at_s)

    def commit(
        self, *attempts: tuple[int, int, int, int], run: str = "r", sink: str = "q", batch: int = 0, at_s: float = 0.0
    ) -> Answer:
        return self.do(CommitRows(sink, run, batch, attempts), at_s)

    def ends(self) -> list[int]:
        layout = decode_answer(self.log.read(encode(Describe(b"t"))))
        assert isinstance(layout, Layout)
        return [each.next for each in layout.parts]

    def placed(self) -> list[tuple[str, int, list[bytes | None]]]:
        return [(each.topic, each.batch.base, each.batch.values()) for each in self.shelf.placed]


@pytest.fixture
def home() -> Home:
    return Home()


def test_a_commit_puts_exactly_the_named_attempts_at_the_ends_of_partitions(home: Home) -> None:
    assert home.begin() == Begun(-1)
    home.stage(b"b", task=1, attempt=7)
    home.stage(b"x", b"y", attempt=3)
    home.stage(b"a", attempt=4)
    home.stage(b"aa", b"aaa", attempt=4, piece=1, part=1)
    home.stage(b"aaaa", attempt=4, piece=2)
    assert home.placed() == []

    assert home.commit((1, 7, 1, 1), (0, 4, 3, 4)) == Committed(False)

    assert home.placed() == [("t", 0, [b"a"]), ("t", 0, [b"aa", b"aaa"]), ("t", 1, [b"aaaa"]), ("t", 2, [b"b"])]
    assert home.ends() == [3, 2]
    assert home.log.homes.bytes == 0


def test_all_that_is_repeated_is_done_once(home: Home) -> None:
    for _ in range(2):
        assert home.begin() == Begun(-1)
    for _ in range(2):
        assert home.stage(b"a") == Staged()
    assert home.commit((0, 0, 1, 1)) == Committed(False)
    assert home.commit((0, 0, 1, 1)) == Committed(True)
    assert home.stage(b"a") == Staged()
    assert home.begin() == Begun(0)

    assert home.placed() == [("t", 0, [b"a"])]
    assert home.log.homes.bytes == 0


def test_a_batch_without_rows_is_committed(home: Home) -> None:
    home.begin()

    assert home.commit((0, 0, 0, 0), (1, 1, 0, 0)) == Committed(False)
    assert home.begin("next") == Begun(0)
    assert home.placed() == []


def test_a_new_run_fences_the_old_one_for_good_and_lets_go_of_its_rows(home: Home) -> None:
    home.begin("old")
    home.stage(b"a", run="old")
    home.begin("new")

    assert home.log.homes.bytes == 0
    assert home.stage(b"a", run="old") == Fences("new")
    assert home.commit((0, 0, 1, 1), run="old") == Fences("new")
    assert home.do(DropRows("q", "old", 0, 0, 0)) == Fences("new")
    assert home.begin("old") == Fences("new")
    home.stage(b"b", run="new")
    assert home.commit((0, 0, 1, 1), run="new") == Committed(False)
    assert home.placed() == [("t", 0, [b"b"])]


def test_who_has_not_begun_writes_nothing(home: Home) -> None:
    assert home.stage(b"a") == Fences("")
    assert home.commit((0, 0, 1, 1)) == Fences("")


@pytest.mark.parametrize("attempts", [((0, 0, 1, 2),), ((0, 0, 2, 1),), ((0, 1, 1, 1),), ((0, 0, 1, 1), (1, 0, 1, 1))])
def test_a_commit_that_names_what_is_not_staged_changes_nothing(home: Home, attempts: Attempts) -> None:
    home.begin()
    home.stage(b"a")

    assert isinstance(home.commit(*attempts), Missing)
    assert home.ends() == [0, 0]
    assert home.commit((0, 0, 1, 1)) == Committed(False)


def test_pieces_come_in_their_order(home: Home) -> None:
    home.begin()

    assert isinstance(home.stage(b"b", piece=1), Missing)
    assert home.log.homes.bytes == 0


@pytest.mark.parametrize(
    "command",
    [
        StageRows("q", "r", 0, 0, 0, 0, b"u", 0, body(b"a")),
        StageRows("q", "r", 0, 0, 0, 0, b"t", 2, body(b"a")),
        StageRows("q", "r", 0, 0, 0, 0, b"t", 0, b"nothing of the kind"),
        StageRows("q", "r", 0, 0, 0, 0, b"t", 0, body(b"a")[:-1] + b"x"),
        StageRows("q", "r", 0, 0, 0, 0, b"t", 0, encode_sealed(7, 1, 1, 1, b"\1" + bytes(79))),
        CommitRows("q", "r", 0, ((0, 0, 0, 0), (0, 1, 0, 0))),
    ],
)
def test_what_cannot_be_staged_or_committed_is_refused(home: Home, command: Command) -> None:
    home.begin()
    before = home.log.snapshot()

    assert isinstance(home.do(command), Refused)
    assert home.log.snapshot() == before


def test_an_attempt_is_dropped(home: Home) -> None:
    home.begin()
    home.stage(b"a", attempt=1)
    home.stage(b"b", attempt=2)

    assert home.do(DropRows("q", "r", 0, 0, 1)) == Staged()
    assert isinstance(home.commit((0, 1, 1, 1)), Missing)
    assert home.commit((0, 2, 1, 1)) == Committed(False)


def test_a_query_that_is_new_here_begins_with_its_first_batch(home: Home) -> None:
    assert isinstance(home.begin(batch=1), Refused)
    assert home.begin() == Begun(-1)
    assert home.begin("next", batch=1) == Begun(-1)


def test_a_query_that_begins_anew_is_known_by_its_origin(home: Home) -> None:
    home.begin(sink="one", origins=["place", "name"])
    assert home.begin(sink="two", origins=["name"]) == Begun(-1)  # the first has written nothing yet
    home.commit((0, 0, 0, 0), sink="two")

    assert home.begin(sink="three", origins=["place", "name"]) == Repeats(1, "two", 1)
    assert isinstance(home.commit(sink="three"), Fences)
    assert home.begin(sink="three", origins=["name"], again="one") == Repeats(0, "two", 1)
    assert home.begin(sink="three", origins=["name"], again="two") == Begun(-1)
    assert home.begin("later", sink="two", origins=["name"]) == Begun(0)  # its checkpoint is brought back
    home.commit((0, 0, 0, 0), sink="three")
    assert home.begin(sink="four", origins=["name"]) == Repeats(0, "three", 1)


def test_staged_rows_are_bounded_and_the_answer_says_what_to_do(home: Home) -> None:
    home.log.homes = homes.Homes(lambda *_: True, staged_bytes_max=5_000)
    home.begin()
    assert home.stage(bytes(3_000)) == Staged()

    full = home.stage(bytes(3_000), piece=1)

    assert isinstance(full, Full)
    assert "make batches smaller" in full.why
    home.do(DropRows("q", "r", 0, 0, 0))
    assert home.stage(bytes(3_000), attempt=1) == Staged()


def test_rows_of_a_silent_query_make_room_sooner_and_else_go_after_an_hour(home: Home) -> None:
    home.log.homes = homes.Homes(lambda *_: True, staged_bytes_max=5_000)
    home.begin(sink="silent")
    home.stage(bytes(3_000), sink="silent")
    home.begin(at_s=homes.ROOM_FORGET_S - 1)
    assert isinstance(home.stage(bytes(3_000), at_s=homes.ROOM_FORGET_S - 1), Full)
    assert home.stage(bytes(3_000), at_s=homes.ROOM_FORGET_S) == Staged()
    assert isinstance(home.commit((0, 0, 1, 1), sink="silent", at_s=homes.ROOM_FORGET_S), Missing)

    home.begin(sink="other", at_s=homes.ROOM_FORGET_S + homes.STAGED_FORGET_S - 1)
    assert home.log.homes.bytes > 0
    home.begin(sink="other", at_s=homes.ROOM_FORGET_S + homes.STAGED_FORGET_S)
    assert home.log.homes.bytes == 0


def test_so_many_queries_are_known_and_those_that_need_not_last_make_room(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(homes, "SINKS_MAX", 2)
    home.begin(sink="lasting")
    home.begin(sink="write", lasting=False)

    assert isinstance(home.begin(sink="third"), Refused)
    assert home.begin(sink="third", at_s=homes.STAGED_FORGET_S) == Begun(-1)
    assert home.begin(sink="lasting", at_s=2 * homes.STAGED_FORGET_S) == Begun(-1)
    assert isinstance(home.begin(sink="fourth", at_s=9 * homes.STAGED_FORGET_S), Refused)


def test_runs_and_origins_that_are_remembered_are_bounded(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "FENCED_MAX", 2)
    monkeypatch.setattr(homes, "ORIGINS_MAX", 2)
    for number in range(4):
        home.begin(f"{number}", origins=[f"o{number}"])
    home.commit((0, 0, 0, 0), run="3")

    assert home.begin("1") == home.begin("2") == Fences("3")
    assert home.begin("0") == Begun(0)
    assert home.begin(sink="p", origins=["o2", "o3"]) == Repeats(0, "q", 1)
    assert home.begin(sink="p", origins=["o1"]) == Begun(-1)


def test_a_state_has_all_of_it_and_equal_states_have_equal_bytes(home: Home) -> None:
    home.begin(origins=["place"])
    home.begin("s", origins=["place"])
    home.stage(b"a", run="s", part=1)
    home.stage(b"b", run="s", task=1)
    home.begin(sink="empty")
    other = Home()

    other.log.restore(home.log.snapshot())

    assert other.log.snapshot() == home.log.snapshot()
    assert other.log.homes.bytes == home.log.homes.bytes > 0
    assert other.begin("r") == Fences("s")
    assert other.begin(sink="anew", origins=["place"]) == Begun(-1)
    assert other.commit((0, 0, 1, 1), (1, 0, 1, 1), run="s") == Committed(False)
    assert other.placed() == [("t", 0, [b"a"]), ("t", 0, [b"b"])]
    assert other.ends() == [1, 1]


@pytest.mark.parametrize(
    ("message", "vector"),
    [
        (BeginRun("q", "r", 1, True, ("o",), ""), "97a5626567696ea171a17201c391a16fa0"),
        (StageRows("q", "r", 1, 2, 3, 4, b"t", 5, b"x"), "9aa57374616765a171a17201020304c4017405c40178"),
        (CommitRows("q", "r", 1, ((2, 3, 4, 5),)), "95a6636f6d6d6974a171a17201919402030405"),
        (DropRows("q", "r", 1, 2, 3), "96a464726f70a171a172010203"),
        (Begun(-1), "92a5626567756eff"),
        (Repeats(0, "q", 1), "94a77265706561747300a17101"),
        (Fences("r"), "92a666656e636573a172"),
        (Staged(), "91a6737461676564"),
        (Committed(True), "92a9636f6d6d6974746564c3"),
        (Missing("no"), "92a76d697373696e67a26e6f"),
        (Full("no"), "92a466756c6ca26e6f"),
    ],
)
def test_each_message_of_queries_has_the_same_bytes_for_ever(message: Command | Answer, vector: str) -> None:
    assert encode(message).hex() == vector
    assert (decode_answer if isinstance(message, Answer) else decode_command)(bytes.fromhex(vector)) == message
