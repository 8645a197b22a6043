"""Data stores and maps: their masters and copies, and the entries and changes of a chosen one."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final

from nicegui import ui

from chappe.dashboard.changes import DashboardChanges, Planned
from chappe.dashboard.entries import ROWS_MAX, EntryChange, EntryRow
from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Here, PageTable, address, every, go, offer, title
from chappe.errors import ChappeError, UsageError
from chappe.observing.snapshot import ObservedMember, ObservedStore

CHANGES_SHOWN: Final = 50
SERVERS: Final = (
    ("name", "server", False), ("place", "place", True), ("status", "status", False), ("address", "address", False),
    ("committed", "commands committed", False), ("behind", "commands behind", False), ("clients", "clients", False),
    ("waits", "waits for", False),
)  # fmt: skip


def page(looks: Looks, here: Here) -> None:
    chosen: list[tuple[str, str] | None] = [None]
    listed: list[EntryRow] = []

    def follow() -> None:
        kind, name = here.chosen("kind"), here.chosen("name")
        title(f"{kind} {name}" if name else "", "Data stores and maps")
        chosen[0] = (kind, name) if name else None
        inside.set_visibility(bool(name))
        of_chain = kind == "chain"
        within.set_visibility(not of_chain)
        servers.element.set_visibility(of_chain)
        heading.text = f"{'Servers of' if of_chain else 'Inside'} {kind} {name}"
        said.text = "Opening ..."
        if editing is not None:
            editing.choose(None)
        entries.show([])
        changes.show([])
        with inside:
            ui.timer(0, refresh, once=True)

    with ui.column().classes("panel"):
        ui.label("Data stores of the mesh, maps and chains").classes("title")
        ui.label(
            "Choose a store or map to look inside, or a chain for its servers. "
            "Maps are named with --map, chains with --chain."
        ).classes("soft")
        table = PageTable(
            (
                ("name", "name", False), ("kind", "kind", False), ("masters", "master or server", False),
                ("copies", "copies at", False), ("entries", "entries", True), ("note", "state or order", False),
            ),
            go, sort=("name", False), empty="no data store or map is known", label="Data stores and maps",
        )  # fmt: skip
    with ui.column().classes("panel") as inside:
        ui.link_target("chosen")
        with ui.row().classes("controls"):
            heading = ui.label("").classes("title")
            ui.space()
            ui.button("Close", on_click=lambda: ui.navigate.to("/stores"), color=None).props("flat dense no-caps")
        servers = PageTable(SERVERS, go, sort=("place", False), empty="no server is known", label="Servers")
        within = ui.column().style("gap: 6px; width: 100%")
    with within:
        text = ui.input("Key or value contains").props("dense outlined clearable")
        editing = _Editing(looks.changes, chosen) if looks.changes is not None else None
        said = ui.label("").classes("soft").props('aria-live="polite"')
        choose_entry = None if editing is None else lambda row: editing.choose(listed[row["id"]])
        with ui.element("div").classes("two"):
            with ui.column():
                ui.label("Entries").classes("title")
                entries = PageTable(
                    (("key", "key", False), ("expires", "time to live", False), ("value", "value", False)),
                    choose_entry,
                    sort=("key", False), empty="no entries", label="Entries",
                )  # fmt: skip
                entries.element.classes("mono")
            with ui.column():
                ui.label("Changes since somebody looks, newest first").classes("title")
                changes = PageTable(
                    (("at", "UTC", False), ("kind", "", False), ("key", "key", False), ("value", "value", False)),
                    empty="nothing has changed", label="Changes",
                )  # fmt: skip
                changes.element.classes("mono")
    inside.set_visibility(False)

    async def look() -> None:
        wanted = chosen[0]
        if wanted is None or wanted[0] == "chain":
            return
        try:
            rows, fitting, total, news, dropped = await asyncio.to_thread(_inside, looks, *wanted, text.value or "")
        except ChappeError as error:
            if chosen[0] == wanted:
                said.text = str(error)
            return
        if chosen[0] != wanted:
            return
        cut = f", of which the first {ROWS_MAX} are listed" if fitting > len(rows) else ""
        said.text = f"{total:,} {'entry' if total == 1 else 'entries'}; {fitting:,} fit{cut}"
        if dropped:
            said.text += f"; {dropped:,} changes came too fast to be shown"
        listed[:] = rows
        entries.show([{"id": n, "key": e.key, "value": e.value, "expires": e.expires} for n, e in enumerate(rows)])
        changes.show([_change(each, number) for number, each in enumerate(news[:CHANGES_SHOWN])])

    def refresh() -> None:
        snapshot = looks.watching.snapshot()
        names = {each.id: each.name for each in snapshot.members}
        table.show([_row(each, names, chosen[0]) for each in snapshot.keepings], snapshot.awaited)
        if chosen[0] is not None and chosen[0][0] == "chain":
            members = {each.id: each for each in snapshot.members}
            found = [each for each in snapshot.keepings if (each.kind, each.name) == chosen[0]]
            ids = [one for each in found for one in (*each.masters, *each.copies)]
            listed_servers = [_server(members[one], n) for n, one in enumerate(ids, 1) if one in members]
            servers.show(listed_servers, snapshot.awaited)

    here.follow(follow)
    every(refresh)
    every(look)


class _Editing:
    def __init__(self, changes: DashboardChanges, inside: list[tuple[str, str] | None]) -> None:
        self._changes = changes
        self._inside = inside
        self._row: EntryRow | None = None
        with ui.row().classes("controls"):
            self._key = ui.input("Key to set").props("dense outlined")
            self._value = ui.input("Value to set").props("dense outlined").style("min-width: 260px")
            for name, plan, colour in (
                ("Set", self._plan_set, "primary"),
                ("Delete the chosen entry", self._plan_erase, "negative"),
                ("Delete all entries", self._plan_clear, "negative"),
            ):
                button = ui.button(name, on_click=offer(plan, self._say)).props(f"no-caps outline color={colour}")
                button.tooltip("Keys and values of data stores are JSON, or else text" if name == "Set" else "")
        self._said = ui.label("").classes("soft").props('aria-live="polite"')

    def choose(self, row: EntryRow | None) -> None:
        self._row = row
        self._key.value, self._value.value = ("", "") if row is None else (row.key, row.value)
        self._said.text = "" if row is None else f"Chosen: {row.key}"

    def _say(self, text: str) -> None:
        self._said.text = text

    def _where(self) -> tuple[str, str]:
        inside = self._inside[0]
        if inside is None or inside[0] == "chain":
            raise UsageError("Only entries of data stores and maps are changed here.")
        return inside

    def _plan_set(self) -> Planned:
        return self._changes.set(*self._where(), self._key.value or "", self._value.value or "")

    def _plan_erase(self) -> Planned:
        if self._row is None:
            raise UsageError("Choose an entry in the list first.")
        return self._changes.erase(*self._where(), self._row)

    def _plan_clear(self) -> Planned:
        return self._changes.clear(*self._where())


def _inside(looks: Looks, kind: str, name: str, text: str) -> tuple[list[EntryRow], int, int, list[EntryChange], int]:
    opened = looks.entries.open(kind, name)
    return (*opened.find(text), *opened.changes())


def _row(each: ObservedStore, names: dict[str, str], chosen: tuple[str, str] | None) -> dict[str, Any]:
    return {
        "id": f"{each.kind} {each.name}",
        "href": address("/stores", kind=each.kind, name=each.name) + "#chosen",
        "name": each.name,
        "kind": each.kind,
        "masters": ", ".join(names.get(one, one) for one in each.masters) or "nobody in reach",
        "copies": ", ".join(names.get(one, one) for one in each.copies),
        "entries": ("", -1) if each.entries is None else (f"{each.entries:,}", each.entries),
        "note": each.note or _ages(each),
        "chosen": chosen == (each.kind, each.name),
    }


def _server(each: ObservedMember, place: int) -> dict[str, Any]:
    facts = dict(each.facts)
    return {
        "id": each.id, "href": address("/", member=each.id), "name": each.name, "place": (str(place), place),
        "status": each.status, "address": each.address, "committed": facts.get("commands committed", ""),
        "behind": facts.get("commands behind", ""), "clients": facts.get("clients", ""),
        "waits": facts.get("waits for", ""),
    }  # fmt: skip


def _ages(each: ObservedStore) -> str:
    old = [age for age in each.ages if age]
    if old:
        return f"{len(old):,} of {len(each.copies):,} clones not up to date, for {max(old):.0f} s"
    return "clones are up to date" if each.ages and None not in each.ages else ""


def _change(each: EntryChange, number: int) -> dict[str, Any]:
    at = time.strftime("%H:%M:%S", time.gmtime(each.at))
    return {"id": number, "at": at, "kind": each.kind, "key": each.key, "value": each.value}
