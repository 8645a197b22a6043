"""Mesh: what is published just now under a prefix, for as long as somebody looks.

A viewer is a subscriber like any other and drops messages it cannot take. Above a rate that a person could follow,
viewing pauses automatically: a page must not make a mesh carry unread messages.
"""

from __future__ import annotations

import time
from collections import deque
from itertools import count
from typing import Any, Final

from nicegui import ui

from chappe.api.mesh.received import Received
from chappe.api.mesh.subscriber import Subscriber
from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Here, PageTable, every, form, value_dialog
from chappe.dashboard.showing import ROW_CHARACTERS, SHOWN_BYTES, shown, typed_text
from chappe.errors import ChappeError
from chappe.observing.snapshot import readable

SHOWN_MAX: Final = 200
QUEUE_MAX: Final = 5_000  # messages between two looks of a page
QUEUE_BYTES: Final = 8 << 20
RATE_MAX: Final = 5_000  # messages a second; beyond it looking is paused
LOOK_S: Final = 0.5
LOOKERS_MAX: Final = 20
_looking: set[Live] = set()  # those that are subscribed


class Live:
    """The messages that one viewer sees; each opening of the page is another viewer."""

    def __init__(self, looks: Looks) -> None:
        self._looks = looks
        self._subscriber: Subscriber | None = None
        self.rows: deque[dict[str, Any]] = deque(maxlen=SHOWN_MAX)
        self.total = 0
        self.per_s = 0.0
        self._numbers = count()
        self._since = 0.0
        self._dropped = 0
        self.texts: dict[int, str] = {}

    @property
    def on(self) -> bool:
        return self._subscriber is not None

    def start(self, prefix: str) -> str:
        """Subscribe; return the problem, or an empty string."""
        self.stop()
        if self._looks.endpoint is None:
            return "This dashboard looks at no mesh: start it with --peer HOST:PORT."
        if len(_looking) >= LOOKERS_MAX:
            return f"{LOOKERS_MAX} viewers look already; one of them has to pause first."
        try:
            self._subscriber = self._looks.endpoint.subscribe(
                prefix, on_full="drop_oldest", messages_max=QUEUE_MAX, bytes_max=QUEUE_BYTES
            )
        except ChappeError as error:
            return str(error)
        _looking.add(self)
        self._looks.leases.touch(("mesh", self), self.stop)
        self._since, self._dropped = time.monotonic(), 0
        return ""

    def stop(self) -> None:
        """Subscribe no more; safe to call twice, and from another thread."""
        _looking.discard(self)
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is not None:
            subscriber.close()

    def take(self) -> str:
        """Take what has come; return a sentence if that was too much."""
        subscriber = self._subscriber  # another thread may end its lease
        if subscriber is None:
            self.per_s = 0.0
            return ""
        try:
            found = subscriber.get_many(QUEUE_MAX, 0)
        except ChappeError as error:
            self.stop()
            return str(error)
        self._looks.leases.touch(("mesh", self), self.stop)
        now = time.monotonic()
        dropped = subscriber.dropped
        came, self._dropped = len(found) + dropped - self._dropped, dropped
        self.per_s, self._since = came / max(now - self._since, 0.05), now
        self.total += came
        for each in found[-SHOWN_MAX:]:
            self.rows.appendleft(self._row(each))
        self.texts = {row["id"]: self.texts[row["id"]] for row in self.rows}
        if self.per_s > RATE_MAX:
            self.stop()
            return f"Paused: {self.per_s:,.0f} messages a second come under this prefix. Choose a longer one."
        return ""

    def _row(self, message: Received) -> dict[str, Any]:
        number = next(self._numbers)
        try:
            message.check_opened()
            long = len(message.payload) > SHOWN_BYTES
            text = shown(message.payload) if long else typed_text(message.payload)
        except ChappeError as error:
            text = f"cannot be read: {error}"
        self.texts[number] = text
        line = " ".join(text.split())
        return {
            "id": number,
            "at": time.strftime("%H:%M:%S", time.gmtime()),
            "topic": readable(message.topic),
            "sender": (message.origin or message.sender)[:8],
            "value": line if len(line) <= ROW_CHARACTERS else f"{line[: ROW_CHARACTERS - 1]}…",
        }


def page(looks: Looks, _: Here) -> None:
    live = Live(looks)

    def toggle() -> None:
        if live.on:
            live.stop()
            said.text = "Paused."
        else:
            said.text = live.start(prefix.value or "")
        show()

    def start() -> None:
        live.stop()
        toggle()

    def choose(row: dict[str, Any]) -> None:
        value_dialog(row["topic"], [("value", live.texts.get(row["id"], row["value"]))])

    with ui.column().classes("panel"):
        ui.label("What is published just now").classes("title")
        ui.label("This dashboard subscribes to the prefix while you look, like any other endpoint.").classes("soft")
        with ui.row().classes("controls"):
            prefix = ui.input("Topics that begin with", placeholder="everything").props("dense outlined")
            prefix.on("keydown.enter", start)
            button = ui.button("Look", on_click=toggle).props("no-caps unelevated color=primary")
            rate = ui.label("").classes("soft")
        said = ui.label("").classes("warning-text").props('aria-live="polite"')
        table = PageTable(
            (("at", "UTC", False), ("topic", "topic", False), ("sender", "from", False), ("value", "value", False)),
            choose,
            empty="nothing has come yet",
            label="Live messages",
        )
        table.element.classes("mono")

    if looks.changes is not None:
        form(
            "Publish a test event", "Publish", looks.changes.publish, "Topic to publish to", "Value to publish",
            about="The value is JSON, or else a text; JSON with @data-type is a typed value of the mesh.",
        )  # fmt: skip

    def show() -> None:
        button.text = "Pause" if live.on else "Look"
        rate.text = (
            f"{live.per_s:,.0f} messages/s, {live.total:,} so far, the newest {SHOWN_MAX} are kept" if live.on else ""
        )

    def refresh() -> None:
        problem = live.take()
        if problem:
            said.text = problem
        show()
        table.show(list(live.rows))

    every(refresh, LOOK_S)
