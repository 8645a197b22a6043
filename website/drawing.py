"""Drawings as SVG: boxes and arrows between them, and what passes between several over time.

All have a white ground of their own, so that they read the same on a dark page, and are plain text, so that a change
shows in a diff.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final
from xml.sax.saxutils import escape

USED: Final = "#dbe9f6"  # what users hold, and users
DECIDES: Final = "#dff0d8"  # a core: decides, no I/O
MOVES: Final = "#fde8d0"  # sockets, threads
KEEPS: Final = "#e6e6e6"  # files
PLAIN: Final = "#ffffff"
BLACK, BLUE, RED, GREY = "#333333", "#1f6fb4", "#c4561b", "#888888"
CHARACTER_PX: Final = 6.1  # of a character of the small size, about
LINE_PX: Final = 15


@dataclass(frozen=True, slots=True)
class Box:
    """Where a box is: its centre and its size."""

    x: float
    y: float
    w: float
    h: float

    def edge(self, x: float, y: float) -> tuple[float, float]:
        """Where the straight line from the centre to (x, y) leaves the box."""
        dx, dy = x - self.x, y - self.y
        share = min(self.w / 2 / abs(dx) if dx else 9e9, self.h / 2 / abs(dy) if dy else 9e9)
        return self.x + dx * share, self.y + dy * share


@dataclass
class Drawing:
    """What is drawn so far; lengths are pixels of a screen that shows it as large as it is."""

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, text: str, *, small: bool = True, bold: bool = False, fill: str = BLACK, at: str = ""
    ) -> None:
        """``at`` is where (x, y) is: the start of the text, or its ``middle`` or ``end``."""
        size = ' font-size="11"' if small else ""
        weight = ' font-weight="bold"' if bold else ""
        anchor = f' text-anchor="{at}"' if at else ""
        self.parts.append(f'<text x="{x:g}" y="{y:g}"{anchor}{size}{weight} fill="{fill}">{escape(text)}</text>')

    def box(self, x: float, y: float, title: str, *lines: str, fill: str = USED, w: float = 0) -> Box:
        """A box around (x, y), as wide as its text or as ``w`` says."""
        widest = max([len(title) * 1.15, *map(len, lines)]) * CHARACTER_PX + 24
        made = Box(x, y, w or max(80, round(widest)), 16 + LINE_PX * (len(lines) + 1))
        self.parts.append(
            f'<rect x="{x - made.w / 2:g}" y="{y - made.h / 2:g}" width="{made.w:g}" height="{made.h:g}" rx="5" '
            f'fill="{fill}" stroke="#666666"/>'
        )
        top = y - made.h / 2 + 20
        self.text(x, top, title, small=False, bold=True, at="middle")
        for number, line in enumerate(lines, 1):
            self.text(x, top + number * LINE_PX, line, fill="#444444", at="middle")
        return made

    def frame(self, x: float, y: float, w: float, h: float, title: str) -> None:
        """A dashed frame with its upper left corner at (x, y): what belongs together."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="8" fill="none" stroke="#999999" '
            'stroke-dasharray="4 3"/>'
        )
        self.text(x + 10, y + 18, title, small=False, fill="#666666")

    def line(
        self, points: list[tuple[float, float]], *, colour: str = BLACK, ends: str = ">", dashed: bool = False
    ) -> None:
        """A line through the points; ``ends`` has ``>`` for an arrow's head at its end, ``<`` for one at its start."""
        heads = ' marker-end="url(#h)"' * (">" in ends) + ' marker-start="url(#h)"' * ("<" in ends)
        dashes = ' stroke-dasharray="5 4"' if dashed else ""
        path = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
        self.parts.append(
            f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}{heads}/>'.replace(
                "#h", f"#{colour[1:]}"
            )
        )

    def link(
        self, start: Box, end: Box, *lines: str, colour: str = BLACK, ends: str = ">", dashed: bool = False
    ) -> None:
        """A straight line from box to box, with what is said of it at its middle."""
        a, b = start.edge(end.x, end.y), end.edge(start.x, start.y)
        self.line([a, b], colour=colour, ends=ends, dashed=dashed)
        self.label((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, *lines, colour=colour)

    def label(self, x: float, y: float, *lines: str, colour: str = BLACK) -> None:
        """Lines of text around (x, y), on white."""
        if not lines:
            return
        w, h = max(map(len, lines)) * CHARACTER_PX + 6, len(lines) * LINE_PX
        self.parts.append(f'<rect x="{x - w / 2:g}" y="{y - h / 2:g}" width="{w:g}" height="{h:g}" fill="white"/>')
        for number, line in enumerate(lines):
            self.text(x, y - h / 2 + 11 + number * LINE_PX, line, fill=colour, at="middle")

    def svg(self) -> str:
        """The whole file."""
        heads = "".join(
            f'<marker id="{colour[1:]}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" fill="{colour}"/></marker>'
            for colour in (BLACK, BLUE, RED, GREY)
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                'font-family="sans-serif" font-size="12">',
                f"<title>{escape(self.title)}</title>",
                f"<defs>{heads}</defs>",
                f'<rect width="{self.width}" height="{self.height}" fill="white"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


class Sequence:
    """What passes between several over time, which goes down: each has a line, and each step takes room on it."""

    def __init__(self, drawing: Drawing, lanes: dict[str, tuple[float, str, str]], top: float = 50) -> None:
        """``lanes`` are their x, their name and the colour of its box."""
        self.drawing = drawing
        self.y = top + 30
        self._top = top
        self._x = {lane: x for lane, (x, _, _) in lanes.items()}
        for x, name, fill in lanes.values():
            title, *lines = name.split("\n")
            drawing.box(x, top, title, *lines, fill=fill)

    def say(self, start: str, end: str, text: str, *, colour: str = BLACK, dashed: bool = False, h: float = 30) -> None:
        """A message, or a call."""
        a, b = self._x[start], self._x[end]
        self.y += h
        self.drawing.line([(a, self.y), (b, self.y)], colour=colour, dashed=dashed)
        self.drawing.label((a + b) / 2, self.y - 10, text, colour=colour)

    def note(self, lane: str, *lines: str, fill: str = PLAIN, w: float = 0) -> None:
        """What somebody does or is now."""
        h = LINE_PX * len(lines) + 12
        self.y += 14
        width = w or max(map(len, lines)) * CHARACTER_PX + 16
        x = self._x[lane]
        self.drawing.parts.append(
            f'<rect x="{x - width / 2:g}" y="{self.y:g}" width="{width:g}" height="{h:g}" rx="3" fill="{fill}" '
            'stroke="#999999"/>'
        )
        for number, line in enumerate(lines):
            self.drawing.text(x, self.y + 17 + number * LINE_PX, line, fill="#444444", at="middle")
        self.y += h

    def aside(self, x: float, *lines: str, colour: str = BLACK, up: float = 4) -> None:
        """Text beside the step that was drawn last."""
        for number, line in enumerate(lines):
            self.drawing.text(x, self.y - up + number * LINE_PX, line, fill=colour)

    def end(self) -> Drawing:
        """The drawing, as long as it has become."""
        self.drawing.height = int(self.y + 24)
        steps, self.drawing.parts = self.drawing.parts, []
        for x in self._x.values():
            self.drawing.line([(x, self._top), (x, self.y + 10)], colour=GREY, ends="", dashed=True)
        self.drawing.parts += steps  # the lines are below them
        return self.drawing
