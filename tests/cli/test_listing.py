"""Tables of commands that list: nothing in them is cut, however narrow the terminal."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from rich.console import Console

from chappe.cli import screen
from chappe.cli.listing import print_table

IDS = ("00199575ABCDEF000000000000000000", "00199575ABCDEF0000000000000000FF", "00199575BBCDEF000000000000000000")
HEADS = ("topic", "partition", "member", "end", "committed")
ROWS = [("orders", each, "worker-1", "1,000", "2026-11-29T13:31:37Z") for each in IDS]


def printed(monkeypatch: pytest.MonkeyPatch, width: int, rows: Sequence[tuple[str, ...]] = ROWS) -> list[list[str]]:
    out = io.StringIO()
    monkeypatch.setattr(screen, "wide_console", lambda _: Console(file=out, width=width))
    print_table(HEADS, rows, right=("end",), ids=("partition", "member"), spare=("committed",))
    return [line.split() for line in out.getvalue().splitlines()]


def test_a_wide_terminal_shows_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(monkeypatch, 90) == [list(HEADS), *map(list, ROWS)]


def test_ids_are_shortened_to_what_tells_them_apart_before_columns_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [(topic, part, *rest) for (topic, _, *rest), part in zip(ROWS, (IDS[0], IDS[2], "hall"), strict=True)]
    assert [line[1:] for line in printed(monkeypatch, 60, rows)[1:]] == [
        ["00199575A", "worker-1", "1,000", "2026-11-29T13:31:37Z"],
        ["00199575B", "worker-1", "1,000", "2026-11-29T13:31:37Z"],
        ["hall", "worker-1", "1,000", "2026-11-29T13:31:37Z"],
    ]
    narrow = printed(monkeypatch, 40, rows)
    assert (narrow[0], narrow[2]) == (list(HEADS[:-1]), ["orders", "00199575B", "worker-1", "1,000"])


def test_text_that_still_has_no_room_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [("a-topic-of-a-long-name", "0", "worker-1", "1", "")]
    lines = printed(monkeypatch, 38, rows)[1:]
    assert "".join(line[0] for line in lines) == "a-topic-of-a-long-name"
    assert lines[0][1:] == ["0", "worker-1", "1"]
