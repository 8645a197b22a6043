"""The machine of keys and values, by itself."""

from __future__ import annotations

import pytest

from chappe.api.chain.key_values import KeyValues
from chappe.defaults import VALUE_BYTES_MAX
from chappe.errors import TypeClash, UsageError
from chappe.testing import check_machine

COMMANDS = [
    b'["put", "b", {"x": [1, 2.5, "text", true]}]',
    b'["put", "a", 1]',
    b'["add", "a", 2]',
    b'["add", "new", 0.5]',
    b'["erase", "b"]',
    b'["put", "b", [1]]',
    b'["compare", "b", [1], [2]]',
    b'["add", "b", 1]',
    b"nonsense",
]


def test_it_is_the_same_at_all_servers() -> None:
    check_machine(KeyValues, COMMANDS, [b'["get", "b"]', b'["size"]', b"[]"])


@pytest.mark.parametrize(
    ("command", "answer"),
    [
        (b'["put", "x", {"y": 1}]', b"null"),
        (b'["erase", "k"]', b"true"),
        (b'["erase", "x"]', b"false"),
        (b'["add", "k", 2]', b"7"),
        (b'["add", "x", 1.5]', b"1.5"),
        (b'["compare", "k", 5, 6]', b"true"),
        (b'["compare", "k", 6, 5]', b"false"),
        (b'["compare", "k", null, 5]', b"false"),
        (b'["compare", "x", null, 5]', b"true"),
        (b'["compare", "k", 5, null]', b"true"),
    ],
)
def test_a_command_is_answered(command: bytes, answer: bytes) -> None:
    machine = KeyValues()
    machine.apply(b'["put", "k", 5]')

    assert machine.apply(command) == answer


def test_it_answers_what_is_there() -> None:
    machine = KeyValues()
    machine.apply(b'["put", "k", {"y": [1, null]}]')

    assert [machine.read(each) for each in (b'["get", "k"]', b'["get", "x"]', b'["size"]')] == [
        b'{"y": [1, null]}',
        b"null",
        b"1",
    ]


@pytest.mark.parametrize(
    "command", [b"", b"{}", b'["put", 1, 2]', b'["put", "k", null]', b'["add", "k", true]', b'["add", "k", "x"]', b"[]"]
)
def test_what_is_no_command_is_refused(command: bytes) -> None:
    with pytest.raises(UsageError):
        KeyValues().apply(command)


def test_nothing_is_added_to_what_is_no_number() -> None:
    machine = KeyValues()
    machine.apply(b'["put", "k", "text"]')

    with pytest.raises(TypeClash):
        machine.apply(b'["add", "k", 1]')
    assert machine.read(b'["get", "k"]') == b'"text"'


def test_a_state_of_more_bytes_than_one_value_may_have_is_kept_and_restored() -> None:
    machine, again = KeyValues(), KeyValues()
    text = "x" * (VALUE_BYTES_MAX // 16)
    for number in range(17):
        machine.apply(b'["put", "%d", "%s"]' % (number, text.encode()))

    again.restore(machine.snapshot())

    assert again.snapshot() == machine.snapshot()
    assert again.read(b'["size"]') == b"17"
