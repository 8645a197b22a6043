"""Make docs/reference/metrics.md of the numbers that the sources name.

python -m tools.metrics
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from chappe.observing.numbers import MEMBER_NUMBERS, SERIES_MAX, Family, of_pipelines, of_snapshot
from chappe.observing.observer import SystemObserver

PAGE: Final = Path(__file__).parent.parent / "docs/reference/metrics.md"
HEAD: Final = f"""# Numbers for Prometheus

[How to observe](../how-to/observe.md) says how they are served and what to alarm on; this page has all of them.
It is made of the sources by `python -m tools.metrics`.

Names are those of OpenMetrics, in seconds and bytes; counters end in `_total` and rise from the start of the process.
Numbers of the process itself are beside them, such as `process_cpu_seconds_total` and `process_resident_memory_bytes`.

## Of members

Every command that serves has these with `--metrics`; `chappe.api.metrics.register` puts them into a registry of yours.
All have the labels `kind` (`store`, `tower`, ...) and `member`, its name, id or address.
A second member of one name in a process is `NAME (2)`.
Of a metric with further labels the {SERIES_MAX} largest series of a member are told.
A gauge has the sum of the rest as `other`, in seconds the largest.

"""
SEEN: Final = """
## Of all that a dashboard sees

`chappe dashboard` has these at `/metrics`, of the same snapshot as its pages; what nobody told is left out.

"""
PIPELINES: Final = """
## Of pipelines

`chappe pipeline run --metrics` has these, and a dashboard on the same machine.

"""


def families() -> list[Family]:
    """Return all metrics, without samples: of members, of what a dashboard sees, of pipelines."""
    return [*_of_members(), *of_snapshot(SystemObserver().snapshot(0.0, 0))]


def page() -> str:
    """Return the whole page."""
    members, pipelines = _of_members(), list(of_pipelines([]))
    seen = [each for each in families() if each not in members and each not in pipelines]
    return HEAD + table(members, ("kind", "member")) + SEEN + table(seen) + PIPELINES + table(pipelines)


def _of_members() -> list[Family]:
    return [
        Family(name, each.meaning, each.kind, ("kind", "member", *each.labels), ())
        for name, each in MEMBER_NUMBERS.items()
    ]


def exposed(family: Family) -> str:
    """Return the name that a query has."""
    return f"{family.name}_total" if family.kind == "counter" else family.name


def table(families: Iterable[Family], common: tuple[str, ...] = ()) -> str:
    """Return a table of metrics, whose ``common`` labels are left out."""
    return "".join(_rows(families, common))


def _rows(families: Iterable[Family], common: tuple[str, ...]) -> Iterator[str]:
    yield "| name | is | labels | |\n|---|---|---|---|\n"
    for each in families:
        labels = ", ".join(f"`{label}`" for label in each.labels if label not in common)
        yield f"| `{exposed(each)}` | {each.kind} | {labels} | {each.meaning} |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
