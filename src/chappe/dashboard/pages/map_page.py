"""Map: who is there and who is connected to whom, drawn so that it stays calm; and the same as a list."""

from __future__ import annotations

from typing import Any, Final

from nicegui import ui

from chappe.dashboard.looks import Looks
from chappe.dashboard.pages.parts import Fact, Here, PageTable, address, every, go, title
from chappe.dashboard.pages.style import GREY, HEXAGON, ILL, KINDS, LINKS
from chappe.dashboard.pages.words import connecting, rate
from chappe.dashboard.pages.words import size as many_bytes
from chappe.data.markup import many
from chappe.observing.drawing import COLUMN, Drawing, Edge, MapNode
from chappe.observing.snapshot import ObservedLink, ObservedMember, SystemSnapshot

LISTED_MAX: Final = 500  # members in the list; the search finds the others
LINKS_SHOWN: Final = 20  # of one member
HELD_BACK_MIN: Final = 100  # messages; of fewer some wait for a moment on any link
LABELS_MAX: Final = 60  # nodes; beyond it names are shown where the pointer is
SERVER_WIDTH: Final = 28
SIDE: Final = 50  # pixels left and right, for half of a label
COLUMN_SIDE: Final = 165  # for a label
PLAIN: Final = (
    "this dashboard",
    "endpoint",
    "original",
    "gateway",
    "map server",
    "chain server",
)  # whose name says enough
SAID: Final = {
    "introduces": "introduced by the tower", "records": "records", "mesh": "a link of the mesh",
    "reads": "reads", "copies": "copies", "asks": "asked while two servers do not see each other",
}  # fmt: skip


class _Chart:
    def __init__(self, choose: Any) -> None:
        self._options: dict[str, Any] = {
            "animation": False,
            "tooltip": {"renderMode": "richText", "confine": True, "formatter": "{b}"},
            "series": [
                {
                    "type": "graph",
                    "layout": "none",
                    "roam": True,
                    "scaleLimit": {"min": 0.4, "max": 8},
                    "top": 30, "bottom": 40, "left": SIDE, "right": SIDE,
                    "preserveAspect": "contain",
                    "label": {"show": True, "position": "bottom", "color": GREY, "fontSize": 12, "distance": 6},
                    "emphasis": {"focus": "adjacency", "label": {"show": True}},
                    "labelLayout": {"hideOverlap": True},
                    "data": [],
                    "links": [],
                }
            ],
        }  # fmt: skip
        self._chart = ui.echart(self._options, on_point_click=lambda event: self._clicked(event, choose))
        self._chart.classes("map").props('role="img" aria-label="Map of members; the list below says the same"')
        self._shown: Drawing | None = None
        self._chosen = ""
        self._ids: list[str] = []

    def show(self, drawing: Drawing, chosen: str) -> None:
        if drawing == self._shown and chosen == self._chosen:
            return
        self._shown, self._chosen = drawing, chosen
        self._ids = [each.id for each in drawing.nodes]
        series = self._chart.options["series"][0]
        series["left"] = COLUMN_SIDE if any(each.kind in COLUMN for each in drawing.nodes) else SIDE
        series["data"] = [_node(each, each.id == chosen, len(drawing.nodes)) for each in drawing.nodes]
        column = {each.id for each in drawing.nodes if each.kind in COLUMN}
        series["links"] = [_edge(each, column.issuperset((each.a, each.b))) for each in drawing.edges]
        self._chart.update()

    def _clicked(self, event: Any, choose: Any) -> None:
        if event.data_type == "node" and 0 <= event.data_index < len(self._ids):
            choose(self._ids[event.data_index])


def page(looks: Looks, here: Here) -> None:
    chosen = [""]
    facts: dict[str, Fact] = {}

    def choose(member_id: str) -> None:
        ui.navigate.to(address("/", member=member_id))

    def follow() -> None:
        chosen[0] = here.chosen("member")
        with top:
            ui.timer(0, refresh, once=True)

    with ui.row().classes("panel facts") as top:
        for each in ("members", "links", "topics", "records a second", "lag, records", "problems"):
            facts[each] = Fact(each)
    with ui.element("div").classes("split"):
        with ui.column().classes("panel"):
            chart = _Chart(choose)
            _legend()
        with ui.column().classes("panel"):
            name = ui.label("").classes("title")
            about = ui.label("").classes("soft")
            status = ui.label("")
            details = ui.column().style("gap: 8px; width: 100%").props('aria-live="polite"')
    with ui.column().classes("panel"):
        search = ui.input("Find a member").props("dense outlined clearable")
        table = PageTable(
            (
                ("name", "name", False), ("kind", "kind", False), ("status", "status", False),
                ("address", "address", False), ("links", "links", True),
            ),
            go, sort=("kind", False), empty="nobody is known yet", label="Members",
        )  # fmt: skip
    shown: list[Any] = [None]

    def refresh() -> None:
        snapshot, drawing = looks.watching.picture()
        _facts(facts, snapshot)
        chart.show(drawing, chosen[0])
        table.show(_rows(snapshot, search.value or "", chosen[0]), snapshot.awaited)
        found = _about(snapshot, drawing, chosen[0])
        if found != shown[0]:
            shown[0] = found
            name.text, about.text, status.text, level, lines = found
            status.classes(replace=f"{level}-text")
            title(f"{about.text} {name.text}".strip() if chosen[0] else "", "Map")
            details.clear()
            with details:
                for heading, text in lines:
                    with ui.column().style("gap: 0; width: 100%"):
                        ui.label(heading).classes("soft")
                        ui.label(text).style("overflow-wrap: anywhere")

    search.on_value_change(refresh)
    here.follow(follow)
    every(refresh)


def _legend() -> None:
    glyphs = {
        HEXAGON: "⬢",
        "triangle": "▲",
        "roundRect": "■",
        "rect": "■",
        "diamond": "◆",
        "pin": "◉",
        "arrow": "➤",
        "circle": "●",
    }
    with ui.row().classes("keys"):
        for kind, (colour, shape) in KINDS.items():
            with ui.row().style("gap: 5px; align-items: center"):
                ui.label(glyphs.get(shape, "○")).style(f"color: {colour}").props('aria-hidden="true"')
                ui.label(kind).classes("soft")


def _facts(facts: dict[str, Fact], snapshot: SystemSnapshot) -> None:
    facts["members"].show(f"{len(snapshot.members):,}")
    facts["links"].show(f"{len(snapshot.links):,}")
    facts["topics"].show(f"{snapshot.topics_total:,}")
    facts["records a second"].show(rate(sum(each.per_s for each in snapshot.topics)))
    facts["lag, records"].show(f"{max((each.lag for each in snapshot.topics), default=0):,}")
    facts["problems"].show(f"{len(snapshot.problems):,}")


def _node(each: MapNode, chosen: bool, nodes: int) -> dict[str, Any]:
    colour, shape = KINDS[each.kind]
    ill = each.level != "good"
    width = min(46, 20 + 3 * len(str(each.size)) * (each.size > 1) + (6 if each.kind in ("store", "tower") else 0))
    beside = each.kind in COLUMN  # where nothing else is
    # of labels that overlap that of the larger symbol is shown
    width = max(width, SERVER_WIDTH) if each.server else width
    return {
        "id": each.id,
        "name": f"! {_label(each)}" if ill else _label(each),
        "x": each.x,
        "y": each.y,
        "symbol": shape,
        "symbolSize": width,
        "label": {
            "show": nodes <= LABELS_MAX or ill or chosen or each.size > 1 or each.server,
            "color": ILL if ill else GREY,
            "position": "left" if beside else "bottom",
        },
        "itemStyle": {
            "color": colour,
            "borderColor": ILL if ill else "#ffffff" if not chosen else "#e69f00",
            "borderWidth": 4 if ill or chosen else 1,
        },
    }


def _label(each: MapNode) -> str:
    plain = each.size > 1 or each.kind in (each.name, *PLAIN)
    return each.name if plain else f"{each.kind} {each.name}"


def _edge(each: Edge, beside: bool) -> dict[str, Any]:
    colour, line = LINKS[each.kind]
    busy = each.there + each.back
    full = each.waiting >= HELD_BACK_MIN
    return {
        "source": each.a,
        "target": each.b,
        "name": _edge_text(each),
        "lineStyle": {
            "color": ILL if full else colour,
            "type": line,
            "width": min(6.0, 1.0 + (0.6 * len(str(int(busy))) if busy >= 1 else 0)),
            "opacity": 0.55 if each.kind == "introduces" else 0.85,
            "curveness": 0.4 if beside and each.kind == "asks" else 0.06,  # around the server between
        },
    }


def _edge_text(each: Edge) -> str:
    text = SAID[each.kind] if each.links == 1 else f"{each.links:,} links: {SAID[each.kind]}"
    if each.there or each.back:
        text += f", {rate(each.there)}/s and {rate(each.back)}/s back"
    return text + (f", {each.waiting:,} messages held back" if each.waiting >= HELD_BACK_MIN else "")


def _rows(snapshot: SystemSnapshot, text: str, chosen: str) -> list[dict[str, Any]]:
    counts: dict[str, int] = {}
    for link in snapshot.links:
        for end in link.ends:
            counts[end] = counts.get(end, 0) + 1
    wanted = text.casefold()
    fitting = [
        each for each in snapshot.members if wanted in f"{each.name} {each.kind} {each.address} {each.id}".casefold()
    ]
    return [
        {
            "id": each.id, "href": address("/", member=each.id), "name": each.name, "kind": each.kind,
            "status": each.status, "address": each.address,
            "links": (f"{counts.get(each.id, 0):,}", counts.get(each.id, 0)), "chosen": each.id == chosen,
        }
        for each in fitting[:LISTED_MAX]
    ]  # fmt: skip


About = tuple[str, str, str, str, list[tuple[str, str]]]  # name, what it is, status and its level, facts


def _about(snapshot: SystemSnapshot, drawing: Drawing, chosen: str) -> About:
    members = {each.id: each for each in snapshot.members}
    member = members.get(chosen)
    if member is not None:
        lines = [(key, value) for key, value in (("address", member.address), *member.facts) if value]
        links = [each for each in snapshot.links if chosen in each.ends]
        lines += [_link(each, chosen, members) for each in links[:LINKS_SHOWN]]
        if len(links) > LINKS_SHOWN:
            lines.append(("", f"and {len(links) - LINKS_SHOWN:,} more links"))
        return member.name, member.kind, member.status, member.level, lines
    group = next((each for each in drawing.nodes if each.id == chosen), None)
    if group is not None:
        where = chosen.rpartition(":")[2] or "no address"
        lines = [("what they are", group.kind), ("where", where), ("to see one", "find it in the list below")]
        return (
            group.name,
            "a group",
            "somebody in it is not well" if group.level != "good" else "all are well",
            group.level,
            lines,
        )
    if chosen and snapshot.awaited:
        return "Not seen yet", "", connecting(snapshot.awaited), "warning", []
    if chosen:
        return "Gone", "", "This member has left.", "warning", []
    return (
        "Who takes part",
        "Choose somebody on the map, or in the list below.",
        "",
        "good",
        [
            ("thickness of a line", "how much goes over it, where somebody tells"),
            ("! and an orange border", "something is wrong: Health says what"),
        ],
    )


def _rates(unit: str, frames: float | None, size: float | None) -> str:
    if frames is None:
        return ""
    return f"{rate(frames)} {unit}/s" + ("" if size is None else f", {many_bytes(round(size))}/s")


def _link(link: ObservedLink, own: str, members: dict[str, ObservedMember]) -> tuple[str, str]:
    first = link.ends[0] == own
    other = members[link.ends[1] if first else link.ends[0]]
    unit = "frames" if link.kind == "mesh" else "messages"
    sent = _rates(unit, link.sent_per_s, link.sent_bytes_per_s)
    received = _rates(unit, link.received_per_s, link.received_bytes_per_s)
    waiting, back = link.waiting, link.waiting_back
    if not first:
        sent, received, waiting, back = received, sent, back, waiting
    secured, not_secured = ("TLS", "no TLS") if link.kind == "mesh" else ("encrypted", "not encrypted")
    parts = [SAID[link.kind], link.note, {True: secured, False: not_secured, None: ""}[link.tls]]
    passed = [f"{text} {way}" for text, way in ((sent, "sent"), (received, "received")) if text]
    parts.append(" and ".join(passed))
    if waiting >= HELD_BACK_MIN:
        parts.append(f"held back here: {many(waiting, 'message')}")
    if back >= HELD_BACK_MIN:
        parts.append(f"held back there: {many(back, 'message')}")
    return f"link to {other.kind} {other.name}", "; ".join(filter(None, parts))
