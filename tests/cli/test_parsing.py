"""Whatever text stands where an option's value should: it is read, or refused with a sentence, never anything else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.cli import console
from chappe.cli.replay import parse_speed
from chappe.cli.units import address, parse_age, parse_bytes, parse_start
from chappe.cli.values import hint, read
from chappe.data.order import TYPE_NAMES
from chappe.data.topic import Filter, check_topic
from chappe.errors import ChappeError, UsageError
from chappe.transports.addresses import TowerAddress

PIECES = [
    *"05-+.:/,*%[](){}hsmwdZx \n\0\x1b\udc80\ud800",
    *("9" * 25, "9" * 5000, "1e400", "nan", "inf", "latest", "ago", "2026-01-31", "T12:00", "0001-01-01", "9999-12-31"),
    *("+14:00", "count:", "real:", "GiB", "tcp://", "localhost", "1.2.3.4", "::1", "nil", "max", " -> ", ", "),
    *("e9", "E-5", "\N{ARABIC-INDIC DIGIT FIVE}", "\N{SUPERSCRIPT TWO}"),
]
texts = st.lists(st.sampled_from(PIECES), max_size=5).map("".join) | st.text(max_size=20)


@pytest.mark.parametrize(
    "parse",
    [
        parse_age,
        parse_bytes,
        parse_start,
        parse_speed,
        address,
        console.host_and_ports,
        TowerAddress.parse_many,
        Filter.parse,
        check_topic,
    ],
)
@given(text=texts)
def test_any_text_is_read_or_refused(parse: Callable[[str], object], text: str) -> None:
    with suppress(ChappeError):
        parse(text)


@given(texts, st.sampled_from([None, *TYPE_NAMES]), st.booleans())
def test_any_value_is_read_or_refused(text: str, kind: str | None, as_text: bool) -> None:
    with suppress(ChappeError):
        read(text, kind, as_text=as_text)
    hint(text)


@pytest.mark.parametrize("text", ["9" * 5000, "9" * 25, "99999999999999w", "0001-01-01T00:00+14:00"])
def test_a_start_that_no_record_can_have_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_start(text)


def test_a_topic_with_half_of_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(UsageError, match="half of a surrogate pair"):
        check_topic("\ud800")
    assert check_topic("\udcff") == "\udcff"  # a byte that is not UTF-8


@pytest.mark.parametrize("address", ["host:99999", "host:1:2:3", "host:x", "\udcff:1"])
def test_what_is_no_address_of_a_tower_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match="is not the address of a tower"):
        console.host_and_ports(address)
    with pytest.raises(UsageError, match="is not the address of a tower"):
        TowerAddress.parse(address)
