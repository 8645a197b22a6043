"""The style of pages: colours that all people tell apart, in light and dark, on screens of any width."""

from __future__ import annotations

from typing import Final

HEXAGON: Final = "path://M25,0 L75,0 L100,50 L75,100 L25,100 L0,50 Z"

# Okabe and Ito's colours; every kind has a shape of its own, too, and every level a word.
KINDS: Final[dict[str, tuple[str, str]]] = {
    "tower": ("#e69f00", "triangle"),
    "store": ("#0072b2", "roundRect"),
    "producers": ("#009e73", "circle"),
    "consumers": ("#cc79a7", "circle"),
    "group": ("#cc79a7", "diamond"),
    "pipeline": ("#d55e00", "pin"),
    "endpoint": ("#56b4e9", "circle"),
    "original": ("#8a8f98", "rect"),
    "gateway": ("#56b4e9", "arrow"),
    "map server": ("#0072b2", "diamond"),
    "chain server": ("#e69f00", "rect"),
    "witness": ("#8a8f98", HEXAGON),
    "member": ("#8a8f98", "circle"),
    "this dashboard": ("#8a8f98", "diamond"),
}
LINKS: Final[dict[str, tuple[str, str]]] = {  # colour, and how the line is drawn
    "records": ("#0072b2", "solid"),
    "mesh": ("#56b4e9", "solid"),
    "reads": ("#cc79a7", "dashed"),
    "copies": ("#0072b2", "dashed"),
    "introduces": ("#c9ccd2", "dotted"),
    "asks": ("#8a8f98", "dotted"),
}
ILL: Final = "#d55e00"
GREY: Final = "#7a808a"  # readable on white and on black
LEVELS: Final = {"good": ("check_circle", "fine"), "warning": ("warning", "warning"), "failed": ("error", "failed")}

CSS: Final = """
:root { --paper: #ffffff; --ground: #f5f6f8; --ink: #1c1f24; --soft: #5d636e; --rule: #dfe2e7; --mark: #0072b2;
  --bad: #b34700; --warn: #8a6100; --good: #00734f; }
body.body--dark { --paper: #1b1e24; --ground: #121419; --ink: #eceef2; --soft: #a3a9b5; --rule: #343943;
  --mark: #6cc2f5; --bad: #ff9a5c; --warn: #f2c14e; --good: #45d6a5; }
body { background: var(--ground); color: var(--ink); font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
.nicegui-content { padding: 0; gap: 0; }
.bar { background: var(--paper); color: var(--ink); border-bottom: 1px solid var(--rule); padding: 6px 16px; gap: 4px;
  align-items: center; flex-wrap: wrap; width: 100%; }
.brand { font-weight: 700; font-size: 17px; margin-right: 14px; }
.bar a { color: var(--soft); text-decoration: none; padding: 5px 11px; border-radius: 6px; }
.bar a:hover { background: var(--ground); color: var(--ink); }
.bar a.here { color: var(--mark); font-weight: 600; background: var(--ground); }
a:focus-visible, button:focus-visible, tr:focus-visible { outline: 3px solid var(--mark); outline-offset: 1px; }
.page { width: 100%; max-width: 1500px; margin: 0 auto; padding: 14px 16px 40px; gap: 14px; }
.panel { background: var(--paper); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; width: 100%;
  gap: 6px; box-shadow: none; color: var(--ink); }
.title { font-size: 17px; font-weight: 650; line-height: 1.3; overflow-wrap: anywhere; }
.soft { color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
.fact { gap: 0; min-width: 92px; }
.fact .number { font-size: 21px; font-weight: 650; line-height: 1.25; font-variant-numeric: tabular-nums; }
.facts { gap: 10px 30px; flex-wrap: wrap; width: 100%; }
.split { display: grid; grid-template-columns: minmax(0, 1fr) 330px; gap: 14px; width: 100%; align-items: start; }
.two { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 14px; width: 100%; }
.problem { border-left: 5px solid var(--rule); padding-left: 13px; gap: 2px; width: 100%; }
.problem.failed { border-color: var(--bad); } .problem.warning { border-color: var(--warn); }
.failed-text { color: var(--bad); font-weight: 600; } .warning-text { color: var(--warn); font-weight: 600; }
.good-text { color: var(--good); font-weight: 600; }
.bar a.failed-text { color: var(--bad); } .bar a.warning-text { color: var(--warn); }
.bar a.good-text { color: var(--good); }
.level { text-transform: uppercase; font-size: 11.5px; letter-spacing: .05em; }
.controls { gap: 10px; align-items: center; flex-wrap: wrap; width: 100%; }
.value { font: 13px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; white-space: pre-wrap; overflow-wrap: anywhere;
  max-height: 55vh; overflow: auto; background: var(--ground); border-radius: 6px; padding: 10px; width: 100%; }
.q-table__container, .q-table__card { background: transparent; color: var(--ink); box-shadow: none; width: 100%; }
.q-table th { color: var(--soft); font-weight: 600; font-size: 13px; } .q-table td { font-size: 14px; }
.q-table tbody td { white-space: normal; overflow-wrap: anywhere; }
.history tbody td:nth-child(-n+2) { white-space: nowrap; }
.q-table tbody td.number { white-space: nowrap; font-variant-numeric: tabular-nums; }
.q-table tbody tr.chosen td { background: color-mix(in srgb, var(--mark) 14%, transparent); }
.choose tbody tr { cursor: pointer; } a.to { color: inherit; text-decoration: none; }
a.to:hover { text-decoration: underline; }
.mono td:last-child { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; }
.q-table__bottom-nodata-icon { display: none; }
.q-btn--flat { color: var(--mark); }
.spark { width: 90px; height: 18px; display: inline-block; vertical-align: middle; overflow: visible;
  border-bottom: 1px solid var(--rule); }
.spark polyline { fill: none; stroke: var(--mark); stroke-width: 1.5; stroke-linejoin: round; }
.map { height: 520px; width: 100%; }
.keys { display: flex; gap: 4px 16px; flex-wrap: wrap; }
@media (max-width: 900px) { .split, .two { grid-template-columns: minmax(0, 1fr); } .page { padding: 8px; }
  .panel { padding: 10px; } .q-table tbody td { min-width: 92px; } .map { height: 380px; }
  .mono tbody td { white-space: nowrap; max-width: 75vw; overflow: hidden; text-overflow: ellipsis; } }
@media (prefers-reduced-motion: reduce) { * { animation: none !important; transition: none !important; } }
"""
