"""The page of limits says what the numbers are, and what happens at them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

import chappe
from chappe import defaults, errors, limits
from chappe.api.chain import member
from chappe.api.log import decoding, ordered_producer, ordered_store
from chappe.bridges import event_files
from chappe.data import label
from chappe.log import events, introducing, traffic
from chappe.log.ordered import commands, homes, machine
from chappe.mesh import link_reports
from chappe.reading import offsets
from chappe.replication.agreement import core as agreement
from chappe.replication.chain import compaction, messages
from chappe.runtime import kv_chain
from chappe.schemas import avro
from chappe.sealing import chain as shelf
from chappe.sealing import in_log
from chappe.subscribers import sharded, shares

PAGE: Final = Path(__file__).parent.parent / "docs" / "reference" / "limits.md"
PLACES: Final = {
    "": defaults,
    "agreement": agreement,
    "chain": messages,
    "avro": avro,
    "client": member,
    "decoding": decoding,
    "compaction": compaction,
    "homes": homes,
    "event_files": event_files,
    "kv_chain": kv_chain,
    "label": label,
    "leaving": introducing,
    "machine": machine,
    "offsets": offsets,
    "ordered": commands,
    "ordered_producer": ordered_producer,
    "ordered_store": ordered_store,
    "reports": link_reports,
    "sharded": sharded,
    "sealing": in_log,
    "shares": shares,
    "shelf": shelf,
    "traffic": traffic,
}
ROW: Final = re.compile(r"^\| (?P<what>.+) \| (?P<figures>.+) \| (?P<then>.+) \| (?P<names>`.+`) \|$", re.MULTILINE)


def figure(name: str) -> str:
    """The number of that name as the page writes it: ``RECORD_BYTES_MAX`` is 8 MiB."""
    place, _, constant = name.rpartition(".")
    value = getattr(getattr(limits, place)() if place.endswith("Limits") else PLACES[place], constant)
    words = constant.upper().split("_")
    if "BYTES" in words:  # SCRUB_BYTES_S: in a second
        return size(value)
    if words[-1] == "S":
        return seconds(value)
    return f"{value:,}"


def seconds(value: float) -> str:
    for unit, length in (("days", 86_400), ("h", 3600), ("min", 60)):
        if value >= 2 * length and value % length == 0:
            return f"{value / length:g} {unit}"
    return f"{value:g} s"


def size(value: int) -> str:
    for unit, length in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= length and value * 8 % length == 0:
            return f"{value / length:g} {unit}"
    return f"{value:,} bytes"


def rows() -> list[tuple[str, str]]:
    found = [(row["figures"], row["names"]) for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
    return [(figures, name) for figures, names in found for name in re.findall(r"`([^`]+)`", names)]


def test_every_row_of_a_table_names_its_numbers() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert [line for line in lines if not ROW.match(line) and "what happens then" not in line] == []
    assert len(rows()) > 60


@pytest.mark.parametrize(("figures", "name"), rows(), ids=[name for _, name in rows()])
def test_the_page_says_the_number_that_is_in_force(figures: str, name: str) -> None:
    assert re.search(rf"(?<![\d,.]){re.escape(figure(name))}(?![\d,.]\d)", figures), f"{name} is {figure(name)}"


def test_errors_and_events_of_the_page_are_there() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", PAGE.read_text(encoding="utf-8")))
    known = {*dir(errors), *dir(events), *chappe.__all__}
    assert len(named) > 10
    assert named - known == set()
