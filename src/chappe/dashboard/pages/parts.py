"""Elements that several pages use, and addresses of pages with the choices made on them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from nicegui import ui

from chappe.dashboard.changes import Planned
from chappe.dashboard.pages.style import GREY
from chappe.dashboard.pages.words import connecting
from chappe.errors import ChappeError


def offer(plan: Callable[[], Planned], said: Callable[[str], object]) -> Callable[[], object]:
    """Plan a change for a button, ask with what will be lost, and carry it out if that is wanted.

    Args:
        plan: What somebody wants; may block. Raises ChappeError if that cannot be.
        said: Told how it went.
    """

    async def ask() -> None:
        try:
            planned = await asyncio.to_thread(plan)
        except (ChappeError, OSError) as error:
            said(str(error))
            return
        _confirm(planned, said)

    return ask


def form(title: str, button: str, plan: Callable[..., Planned], *inputs: str, about: str = "") -> None:
    """Show a panel whose button offers what is planned with the texts of its inputs."""
    with ui.column().classes("panel"):
        ui.label(title).classes("title")
        if about:
            ui.label(about).classes("soft")
        with ui.row().classes("controls"):
            fields = [ui.input(each).props("dense outlined").style("min-width: 200px") for each in inputs]
            action = offer(lambda: plan(*(each.value or "" for each in fields)), lambda text: said.set_text(text))
            ui.button(button, on_click=action).props("no-caps outline")
        said = ui.label("").classes("soft").props('aria-live="polite"')


def _confirm(planned: Planned, said: Callable[[str], object]) -> None:
    async def do() -> None:
        button.disable()
        try:
            text = await asyncio.to_thread(planned.carry_out)
        except (ChappeError, OSError) as error:
            text = str(error)
        dialog.close()
        said(text)

    with ui.dialog(value=True).props("persistent") as dialog, ui.card() as card:
        card.classes("panel confirm").style("max-width: 700px").props('role="alertdialog"')
        ui.label(planned.title).classes("title")
        ui.label(planned.loses).classes("value" if planned.harmless else "value failed-text")
        with ui.row().classes("controls"):
            ui.button("Cancel", on_click=dialog.close, color=None).props("flat no-caps autofocus")
            button = ui.button(planned.verb, on_click=do)
            button.props(f"no-caps unelevated color={'primary' if planned.harmless else 'negative'}")
    dialog.on("hide", dialog.delete)


def address(path: str, **chosen: str) -> str:
    """Return the address of a page on which something is chosen, or nothing."""
    return f"{path}?{urlencode(chosen, quote_via=quote)}" if chosen else path


class Here:
    """The address of one viewer. A choice is made by going to its address: pages change in one way only. ``at``:
    address at which the viewer begins.
    """

    def __init__(self, at: str) -> None:
        self._follow: Callable[[], None] | None = None
        self._path = ""
        self._chosen: dict[str, str] = {}
        self.take(at)

    def take(self, at: str) -> None:
        """Go to the address of the viewer; a page that stays follows."""
        parts = urlsplit(at)
        path = parts.path.rstrip("/") or "/"
        self._chosen = dict(parse_qsl(parts.query))
        if path != self._path:
            self._path, self._follow = path, None  # another page is built next
        elif self._follow is not None:
            self._follow()

    def follow(self, function: Callable[[], None]) -> None:
        """Call this now, and whenever something else is chosen on the page."""
        self._follow = function
        function()

    def chosen(self, name: str) -> str:
        return self._chosen.get(name, "")


def title(*names: str) -> None:
    ui.page_title(" · ".join((*filter(None, names), "chappe")))


REFRESH_S: Final = 1.0
ROWS_PAGE: Final = 15

# Rows are no buttons to a browser: so they are reached by key. ``{{ }}`` is text, whatever stands in it.
# The first cell of a row with an address is a link, to be copied or opened in another tab.
CELLS: Final = """<q-td v-for="(col, number) in props.cols" :key="col.name" :props="props">
  <svg v-if="col.name === 'spark'" v-show="props.row.spark" class="spark" viewBox="0 0 90 18" role="img"
  aria-label="rate of the last five minutes">
  <polyline :points="[...props.row.spark].map((c, n, all) =>
  `${3 * (30 - all.length + n)},${17 - parseInt(c, 36)}`).join(' ')" /></svg>
  <a v-else-if="props.row.href && number === 0" class="to" tabindex="-1" :href="props.row.href">{{
  props.row[col.name] }}</a>
  <template v-else>{{ props.row[col.name] }}</template></q-td>"""
PLAIN: Final = f'<q-tr :props="props">{CELLS}</q-tr>'
CHOOSE: Final = f"""<q-tr :props="props" tabindex="0" :class="props.row.chosen ? 'chosen' : ''"
  :aria-selected="!!props.row.chosen" @click="$event.target.closest('a') || $parent.$emit('choose', props.row.id)"
  @keydown.enter="$parent.$emit('choose', props.row.id)">{CELLS}</q-tr>"""

SECONDS: Final = {"s": 1.0, "min": 60.0, "h": 3_600.0}
PARTS: Final = {"s": (15, 60), "min": (1, 2, 5, 10), "h": (0.25, 0.5, 1, 2, 4)}  # between labels of an axis

Columns = Sequence[tuple[str, str, bool]]  # name, heading, whether it is a number


class PageTable:
    """A table whose rows are sent to the browser only when they have changed; a row can be chosen by click or key.

    Args:
        columns: Name, heading, and whether it is a number, of each.
        choose: Called with the row that was chosen; without it rows cannot be.
        sort: Column that it is sorted by at first, and whether downwards.
        empty: What stands there if there is no row; until the first are shown it says that it connects.
    """

    def __init__(
        self,
        columns: Columns,
        choose: Callable[[dict[str, Any]], Any] | None = None,
        *,
        sort: tuple[str, bool] | None = None,
        empty: str = "nothing yet",
        label: str = "",
    ) -> None:
        made = [
            {
                "name": name,
                "label": heading,
                "field": f"{name}_n" if number else name,
                "sortable": True,
                "align": "right" if number else "left",
                "classes": "number" if number else "",
            }
            for name, heading, number in columns
        ]
        pagination: dict[str, Any] = {"rowsPerPage": ROWS_PAGE}
        if sort is not None:
            pagination |= {"sortBy": sort[0], "descending": sort[1]}
        self.element = ui.table(columns=made, rows=[], row_key="id", pagination=pagination)
        self.element.props(
            f'dense flat binary-state-sort no-data-label="{connecting()}" :rows-per-page-options="[15,50,200]" '
            'rows-per-page-label="rows"'
        )
        if label:
            self.element.props(f'aria-label="{label}"')
        self._empty = empty
        self.element.add_slot("body", PLAIN if choose is None else CHOOSE)
        if choose is not None:
            self.element.classes("choose")
            self.element.on("choose", lambda event: self._chosen(event.args, choose))

    def show(self, rows: list[dict[str, Any]], awaited: Sequence[str] = ()) -> None:
        """Show rows, each with an ``id``; in columns of numbers a text and the number that it is sorted by.

        ``awaited`` are sources that may have more rows: without one, the table says that it waits for them.
        """
        empty = connecting(awaited) if awaited else self._empty
        if self.element.props["no-data-label"] != empty:
            self.element.props["no-data-label"] = empty
            self.element.update()
        rows = [_flat(each) for each in rows]
        if rows != self.element.rows:
            self.element.rows = rows

    def _chosen(self, row_id: Any, choose: Callable[[dict[str, Any]], Any]) -> Any:
        for each in self.element.rows:
            if each["id"] == row_id:
                return choose(each)
        return None


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in row.items():
        if isinstance(value, tuple):
            found[name], found[f"{name}_n"] = value
        else:
            found[name] = value
    return found


class Fact:
    def __init__(self, name: str) -> None:
        with ui.column().classes("fact"):
            self._number = ui.label("").classes("number")
            ui.label(name).classes("soft")

    def show(self, text: str) -> None:
        if self._number.text != text:
            self._number.text = text


class LineChart:
    def __init__(self, name: str, unit: str) -> None:
        self._options: dict[str, Any] = {
            "animation": False,
            "color": ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"],
            "grid": {"left": 20, "right": 16, "top": 30, "bottom": 4, "containLabel": True},
            "title": {"text": f"{name}, {unit}", "textStyle": {"fontSize": 13, "color": GREY, "fontWeight": "normal"}},
            "tooltip": {"trigger": "axis", "renderMode": "richText", "confine": True},
            "legend": {"right": 8, "textStyle": {"color": GREY}, "type": "scroll", "width": "60%"},
            "xAxis": {
                "type": "value", "max": 0, "axisLabel": {"color": GREY, "hideOverlap": True},
                "axisLine": {"lineStyle": {"color": GREY}}, "splitLine": {"show": False},
            },
            "yAxis": {"type": "value", "min": 0, "minInterval": 1, "axisLabel": {"color": GREY},
                      "axisLine": {"show": False, "onZero": False}, "axisTick": {"show": False},
                      "splitLine": {"lineStyle": {"color": GREY, "opacity": 0.25}}},
            "series": [],
        }  # fmt: skip
        self._chart = ui.echart(self._options).style("height: 210px; width: 100%")
        self._shown: tuple[str, list[tuple[str, list[list[float]]]]] = ("", [])

    def show(self, lines: Sequence[tuple[str, Sequence[tuple[float, float]]]], unit: str = "s") -> None:
        """Show lines by name: seconds before now, and how much; times are shown in ``s``, ``min`` or ``h``."""
        second = SECONDS[unit]
        made = [(name, [[round(x / second, 3), round(y, 2)] for x, y in points]) for name, points in lines]
        if (unit, made) == self._shown:
            return
        self._shown = (unit, made)
        since = min((points[0][0] for _, points in made if points), default=0.0)
        part = next(each for each in PARTS[unit] if -since <= 6 * each or each == PARTS[unit][-1])
        axis = self._chart.options["xAxis"]
        axis["min"] = -part * max(1, math.ceil(-since / part))  # no emptiness before it began
        axis["interval"] = part
        axis["axisLabel"]["formatter"] = f"{{value}} {unit}"
        self._chart.options["legend"]["show"] = len(made) > 1
        self._chart.options["series"] = [
            {"type": "line", "name": name, "data": points, "showSymbol": False, "lineStyle": {"width": 2},
             "areaStyle": {"opacity": 0.12}}
            for name, points in made
        ]  # fmt: skip
        self._chart.update()


def go(row: dict[str, Any]) -> None:
    ui.navigate.to(row["href"])


def every(function: Callable[[], Any], seconds: float = REFRESH_S) -> ui.timer:
    return ui.timer(seconds, function, immediate=True)


def value_dialog(title: str, parts: Sequence[tuple[str, str]]) -> None:
    with ui.dialog(value=True) as dialog, ui.card().classes("panel").style("max-width: 900px; width: 90vw"):
        ui.label(title).classes("title")
        for name, text in parts:
            ui.label(name).classes("soft")
            ui.label(text).classes("value")
        ui.button("Close", on_click=dialog.close, color=None).props("flat no-caps autofocus")
    dialog.on("hide", dialog.delete)
