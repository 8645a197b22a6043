"""Compiled and pure are one source: they give the same bytes, the same errors, and play the same worlds.

Skipped where chappe is not installed compiled. The pure side is a process with ``CHAPPE_PURE=1``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import sides

from chappe.data import binary
from chappe.kv.backend import ClearRows, PutRow
from chappe.kv.chained.messages import encode_operation, parts_of
from chappe.kv.entity import NOBODY
from chappe.log.batch import encode_batch

ROOT: Final = Path(__file__).parent.parent
HEX: Final = re.compile(r'"((?:[0-9a-f]{2}){2,2000})"')

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(binary.__file__.endswith(".py"), reason="chappe is pure here"),
]


def _vectors() -> list[bytes]:
    """Everything in hexadecimal that was captured from the originals."""
    files = sorted((ROOT / "tests" / "vectors").glob("*/*.json"))
    return sorted({bytes.fromhex(each) for file in files for each in HEX.findall(file.read_text())})


def _made() -> list[bytes]:
    """Batches, and what else the originals do not know."""
    full = encode_batch(
        3, [b"one", None, b""], 5, timestamps=[5, 7, 6], keys=[b"k", None, b"l"], headers=[(("h", b"v"),), (), ()]
    )
    operations = [encode_operation(PutRow(binary.encode("k"), binary.encode(1), 5)), encode_operation(ClearRows())]
    parts = parts_of(NOBODY, 1, 7, operations, 1_000)
    links = binary.encode((1, 2, None, (("other", 1, 2, 3, 4),), (("store", True, 5, 0.5),)))
    return [encode_batch(0, [b"x"], 1), full, *operations, *parts, links]


VECTORS: Final = [*_vectors(), *_made()]


class Other:
    """The pure side, in a process of its own."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sides"], cwd=ROOT, env=os.environ | {"CHAPPE_PURE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.file = self._hear()

    def answer(self, task: str, raw: bytes) -> str:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{task} {raw.hex()}\n")
        self._process.stdin.flush()
        return self._hear()

    def end(self) -> None:
        self._process.communicate()

    def _hear(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().removesuffix("\n")


@pytest.fixture(scope="module")
def other() -> Iterator[Other]:
    made = Other()
    yield made
    made.end()


def _same(other: Other, task: str, raw: bytes) -> None:
    assert other.answer(task, raw) == sides.answer(task, raw).encode("unicode_escape").decode()


def test_one_installation_has_both_sides(other: Other) -> None:
    assert Path(other.file) == Path(binary.__file__).with_name("binary.py")


@pytest.mark.parametrize("task", sides.TASKS)
def test_both_make_the_same_of_what_the_originals_sent(other: Other, task: str) -> None:
    for raw in VECTORS:
        _same(other, task, raw)


@settings(max_examples=100)
@given(task=st.sampled_from(sorted(sides.TASKS)), data=st.data())
def test_both_make_the_same_of_what_was_damaged(other: Other, task: str, data: st.DataObject) -> None:
    for _ in range(10):
        raw = bytearray(data.draw(st.sampled_from(VECTORS)))
        place = data.draw(st.integers(0, len(raw) - 1))
        raw[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        _same(other, task, bytes(raw))


@settings(max_examples=200)
@given(task=st.sampled_from(sorted(sides.TASKS)), raw=st.binary(max_size=64))
def test_both_make_the_same_of_any_bytes(other: Other, task: str, raw: bytes) -> None:
    _same(other, task, raw)


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 65), 1 << 65) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(max_size=3), some, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200)
@given(thing=JSON, kind=st.sampled_from(["count", "integer", "real", "timespan", "timestamp", "port", "address"]))
def test_both_read_the_same_json(other: Other, thing: object, kind: str) -> None:
    import json

    _same(other, "json", json.dumps(thing).encode())
    _same(other, "json", json.dumps({"@data-type": kind, "data": thing}).encode())


def test_pure_is_said() -> None:
    said = [
        subprocess.run(
            [sys.executable, "-m", "chappe", "--version"], env=os.environ | {"CHAPPE_PURE": pure},
            capture_output=True, text=True, check=True,
        ).stdout
        for pure in ("0", "1")
    ]  # fmt: skip
    assert "modules compiled" in said[0]
    assert "Python alone, since CHAPPE_PURE is set" in said[1]


@pytest.mark.parametrize("scenario", ["log", "mesh", "kv", "kv-chain", "chain"])
def test_both_play_the_same_world(scenario: str) -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "tests.worlds", "--scenario", scenario, "--seed", "11", "-v"],
            env=os.environ | {"CHAPPE_PURE": pure}, capture_output=True, text=True, check=True,
        ).stdout
        for pure in ("0", "1")
    ]  # fmt: skip
    assert len(told[0].splitlines()) > 30
    assert told[0] == told[1]
