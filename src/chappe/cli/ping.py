"""``chappe ping``: round-trip times to a peer."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import declared, mesh, options
from chappe.cli.charts import bar
from chappe.cli.console import hear_warnings, show_json, warn
from chappe.errors import PeeringError, TimedOut

TIMEOUT_S: Final = 5.0
PERCENTILES: Final = (50, 90, 99)
BAR: Final = 40  # characters
BUCKETS_MAX: Final = 16


@options.with_groups
def ping(
    trust: mesh.Trust,
    life: mesh.Life,
    peer: Annotated[
        str,
        Argument(
            metavar="HOST[:PORT]",
            help="The endpoint to ask.",
            envvar=declared.of("mesh.peers").variable,
            parser=declared.as_is,
            callback=declared.of("mesh.peers").take_first,
        ),
    ] = mesh.HERE,
    count: Annotated[int, Option(min=1, max=1_000_000, metavar="N", help="How many times.")] = 100,
    interval: Annotated[float, Option(min=0.0, max=3600.0, metavar="SECONDS", help="Pause in between.")] = 0.01,
    as_json: options.Json = False,
) -> None:
    """Measure round trips to an endpoint of the mesh, an original included."""
    hear_warnings()
    security = trust.security()
    (where,) = mesh.addresses(security, [peer])
    with life.endpoint(security) as endpoint:
        began = time.perf_counter()
        found = endpoint.peer(*where, retry_s=0)
        peering_s = time.perf_counter() - began
        original = any(each.original for each in endpoint.peers())
        times: list[float] = []
        lost = ""
        try:
            for number in range(count):
                if number:
                    time.sleep(interval)
                times.append(endpoint.ping(found, TIMEOUT_S))
        except KeyboardInterrupt:
            pass  # what there is until then is shown
        except (PeeringError, TimedOut) as error:
            lost = str(error)
    times.sort()
    if as_json:
        show_json(_facts(mesh.shown(where), found, original, peering_s, times))
    else:
        _show(mesh.shown(where), found, original, peering_s, times)
    if lost:
        warn(f"after {len(times)} of {count}: {lost}")
    if lost or not times:
        raise typer.Exit(1)


def percentile(times: Sequence[float], percent: float) -> float:
    """Return the smallest of the sorted ``times`` that so many percent do not exceed."""
    return times[max(0, math.ceil(len(times) * percent / 100) - 1)]


def histogram(times: Sequence[float]) -> list[tuple[float, float, int]]:
    """Count the sorted ``times`` in steps: from, to, count. Steps are of equal ratio: 2, or a root of it."""
    low, high = max(times[0], 1e-7), max(times[-1], 1e-7)
    per_octave = 4
    while per_octave > 1 and math.log2(high / low) * per_octave > BUCKETS_MAX:
        per_octave //= 2
    first = math.floor(math.log2(low) * per_octave)
    counts: dict[int, int] = {}
    for each in times:
        bucket = math.floor(math.log2(max(each, 1e-7)) * per_octave)
        counts[bucket] = counts.get(bucket, 0) + 1
    last = max(counts)
    return [
        (2 ** (bucket / per_octave), 2 ** ((bucket + 1) / per_octave), counts.get(bucket, 0))
        for bucket in range(first, last + 1)
    ]


def _facts(where: str, found: str, original: bool, peering_s: float, times: Sequence[float]) -> dict[str, object]:
    facts: dict[str, object] = {
        "peer": where,
        "id": found,
        "original": original,
        "peering_us": _us(peering_s),
        "count": len(times),
    }
    if times:
        facts["min_us"] = _us(times[0])
        facts["mean_us"] = _us(sum(times) / len(times))
        facts |= {f"p{each}_us": _us(percentile(times, each)) for each in PERCENTILES}
        facts["max_us"] = _us(times[-1])
        facts["histogram"] = [
            {"from_us": _us(low), "to_us": _us(high), "count": n} for low, high, n in histogram(times)
        ]
    return facts


def _us(seconds: float) -> float:
    return round(seconds * 1e6, 1)


def _show(where: str, found: str, original: bool, peering_s: float, times: Sequence[float]) -> None:
    kind = "an original" if original else "chappe"
    print(f"{where} is {found} ({kind}), peered in {readable(peering_s)}")
    if not times:
        return
    shares = ", ".join(f"p{each} {readable(percentile(times, each))}" for each in PERCENTILES)
    print(f"{len(times)} round trips: min {readable(times[0])}, {shares}, max {readable(times[-1])}")
    rows = histogram(times)
    most = max(count for _, _, count in rows)
    for low, high, count in rows:
        print(f"{readable(low):>9} - {readable(high):<9} {count:>7}  {bar(count, most, BAR)}".rstrip())


def readable(seconds: float) -> str:
    """Return a time with three digits: ``61.2 us``, ``1.25 ms``."""
    for unit, factor in (("us", 1e6), ("ms", 1e3)):
        if seconds * factor < 999.5:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds:.3g} s"
