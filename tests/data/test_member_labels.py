"""Labels of members: short printable text, whatever somebody calls himself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_hostile_names import HOSTILE

from chappe.data.label import LABEL_MAX, check_label, default_label, is_label
from chappe.errors import UsageError


@pytest.mark.parametrize("label", ["boiler 3", "sensor.py@web1", "größe", "x" * LABEL_MAX])
def test_short_printable_text_is_a_label(label: str) -> None:
    assert check_label(label) == label


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "   ",
        "x" * (LABEL_MAX + 1),
        HOSTILE,
        "a\nb",
        "a\tb",
        "\x1b[2J",
        "\u202ex",
        "\ud800",
        b"x",
        5,
        None,
    ],
)
def test_anything_else_is_refused_in_a_sentence(wrong: object) -> None:
    with pytest.raises(UsageError, match="a name is"):
        check_label(wrong)


@given(st.text(), st.text())
def test_a_default_label_is_one_whatever_program_and_host_are_called(program: str, host: str) -> None:
    assert is_label(default_label(program, host))


def test_a_long_program_leaves_room_for_the_host() -> None:
    assert default_label("p" * 100, "web1") == "p" * 32 + "@web1"
    assert len(default_label("p" * 100, "h" * 100)) == LABEL_MAX
