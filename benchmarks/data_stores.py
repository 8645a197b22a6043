"""Data stores: writes and reads of masters and clones, durable writes, attaching, and what an idle clone costs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from benchmarks.children import Child, Children, has_original
from benchmarks.outcome import Line, Rate, per_second, times
from benchmarks.settings import Settings

MEMBERS = "benchmarks.data_stores_members"
PUTS = 200_000
GETS = 2_000_000
ONE_BY_ONE = 3_000
DURABLE_PUTS = 100_000
THREADS = 64
ENTRIES = 100_000
ORIGINAL_COUNT = 40_000
CALM_S = 6.0  # so long after the last write it is idle: what might be lost has been told several times
IDLE_S = 20.0
PUT_TARGET = 150_000.0
VISIBLE_TARGET = 60_000.0
GET_TARGET = 1_000_000.0
DURABLE_TARGET = 20_000.0
ATTACH_MS = 1_000.0
IDLE_TARGET = 2.0  # frames a second, each way
PUT_MS = (0.4, 1.5)
POLLED_MS = (1.0, 6.0)  # a thread that asks again and again can lose the processor for a switch interval, 5 ms
FIRST_GET_MS = 25.0
UNIQUE_MS = (0.5, 2.0)


def _rounds(settings: Settings, child: Child, count: int, **order: Any) -> Rate:
    child.ask(count=max(count // 10, 1), **order)  # warm
    rates = []
    for _ in range(settings.repeats):
        facts = child.ask(count=count, **order)
        rates.append(count / (facts["end"] - facts["start"]) * 1e9)
    return Rate(tuple(rates))


def _line(path: str, rate: Rate, target: float, original: Rate | None = None) -> Line:
    return Line(
        path,
        str(rate),
        f">= {per_second(target)}",
        "" if original is None else f"original's Python bindings: {original}",
        "" if original is None else times(rate.median / original.median),
        met=rate.median >= target,
        note=rate.note(),
        numbers=rate.numbers("chappe"),
    )


@dataclass(frozen=True, slots=True)
class _Found:
    """What a master and a clone in memory reached."""

    alone: Rate
    at_master: Rate
    at_clone: Rate
    visible: Rate
    put_ms: tuple[float, float]
    unique_ms: tuple[float, float]


def _measure(settings: Settings, start: Callable[..., Child], puts: int, gets: int, ones: int) -> _Found:
    """A master without clones, then with one."""
    master = start("master")
    port = master.hear()["port"]
    alone = _rounds(settings, master, puts, do="put")
    master.ask(do="put", count=10_000)
    at_master = _rounds(settings, master, gets, do="get")
    clone = start("clone", ports=[port])
    clone.hear()
    at_clone = _rounds(settings, clone, gets, do="get")
    visible = []
    for number in range(settings.repeats + 1):
        clone.order(do="await last", round=number)
        began = master.ask(do="put unconfirmed", count=puts, round=number)["start"]
        visible.append(puts / (clone.hear()["end"] - began) * 1e9)
    put_ms, unique_ms = (_latency(settings, clone, f"{how} one by one", ones) for how in ("put", "put unique"))
    return _Found(alone, at_master, at_clone, Rate(tuple(visible[1:])), put_ms, unique_ms)


def in_memory(settings: Settings) -> list[Line]:
    """A master without clones, then with one; beside the original, if it is there."""
    with Children(settings.work / "data-store") as children:
        gets = max(settings.count(GETS), 10_000)
        found = _measure(
            settings, partial(children.start, MEMBERS), settings.count(PUTS), gets, settings.count(ONE_BY_ONE)
        )
    original = None
    if has_original():
        with Children(settings.work / "data-store-original") as children:
            few = max(settings.count(ORIGINAL_COUNT), 10_000)
            original = _measure(settings, children.original, few, few, settings.count(ORIGINAL_COUNT // 200))
    return [
        _line("data store: master put, no clone", found.alone, PUT_TARGET, original.alone if original else None),
        _line(
            "data store: put until visible at one clone",
            found.visible,
            VISIBLE_TARGET,
            original.visible if original else None,
        ),
        _line("data store: get at the master", found.at_master, GET_TARGET, original.at_master if original else None),
        _line("data store: get at a clone", found.at_clone, GET_TARGET, original.at_clone if original else None),
        _milliseconds("clone put, until shown there", found.put_ms, PUT_MS, original.put_ms if original else None),
        _milliseconds("put_unique of a clone", found.unique_ms, UNIQUE_MS, original.unique_ms if original else None),
    ]


def _latency(settings: Settings, clone: Child, order: str, count: int) -> tuple[float, float]:
    clone.ask(do=order, count=200, round=1_000_000)
    found = [clone.ask(do=order, count=count, round=number) for number in range(settings.repeats)]
    return median(each["p50_us"] / 1000 for each in found), median(each["p99_us"] / 1000 for each in found)


def _milliseconds(
    name: str, found: tuple[float, float], target_ms: tuple[float, float], original: tuple[float, float] | None
) -> Line:
    p50, p99 = found
    return Line(
        f"data store: {name}, p50 / p99",
        f"{p50:.2f} / {p99:.2f} ms",
        f"< {target_ms[0]:g} / {target_ms[1]:g} ms",
        "" if original is None else f"original's Python bindings: {original[0]:.2f} / {original[1]:.2f} ms",
        "" if original is None else times(p50 / original[0]),
        met=p50 < target_ms[0] and p99 < target_ms[1],
        numbers={"p50_ms": p50, "p99_ms": p99},
    )


def polled(settings: Settings) -> list[Line]:
    """Programs that call ``get`` until it shows a change, as the original's do: a clone's put, and a new clone."""
    with Children(settings.work / "data-store-polled") as children:
        master = children.start(MEMBERS, "master")
        clone = children.start(MEMBERS, "clone", ports=[master.hear()["port"]])
        clone.hear()
        put_ms = _latency(settings, clone, "put and get one by one", settings.count(ONE_BY_ONE))
    with Children(settings.work / "data-store-bindings") as children:
        ours = _ask_again(settings, children.bindings)
    original = None
    if has_original():
        with Children(settings.work / "data-store-polled-original") as children:
            original = _ask_again(settings, children.original)
    return [
        _milliseconds("clone put without a wait, until get shows it", put_ms, POLLED_MS, None),
        _milliseconds("the same through compat.broker", ours[0], POLLED_MS, original[0] if original else None),
        Line(
            "data store: attach_clone until the first get, through compat.broker",
            f"{ours[1]:.1f} ms",
            f"< {FIRST_GET_MS:g} ms",
            f"original's Python bindings: {original[1]:.1f} ms" if original else "",
            times(ours[1] / original[1]) if original else "",
            met=ours[1] < FIRST_GET_MS,
            numbers={"median_ms": ours[1]},
        ),
    ]


def _ask_again(settings: Settings, start: Callable[..., Child]) -> tuple[tuple[float, float], float]:
    """A clone's put until its ``get`` shows it, p50 and p99; and a new clone until its first ``get``, in the middle."""
    master = start("master")
    port = master.hear()["port"]
    master.ask(do="put", count=10)
    clone = start("clone", ports=[port])
    clone.hear()
    put_ms = _latency(settings, clone, "put one by one", settings.count(ONE_BY_ONE))
    attacher = start("attacher", ports=[port])
    attacher.hear()
    return put_ms, median(attacher.ask()["ms"] for _ in range(2 * settings.repeats + 1))


def durable(settings: Settings) -> list[Line]:
    """Writes that are on disk when they return: pipelined, and of many threads at once."""
    lines = []
    count = settings.count(DURABLE_PUTS)
    for backend in ("sqlite", "rocksdb"):
        with Children(settings.work / f"data-store-{backend}") as children:
            path = str(settings.work / f"store-{backend}")
            master = children.start(MEMBERS, "master", backend=backend, path=path)
            master.hear()
            many = _rounds(settings, master, count, do="put many")
            threads = _rounds(settings, master, count // THREADS * THREADS, do="put from threads", threads=THREADS)
        name = f"data store: durable put, {backend}"
        lines.append(_line(f"{name}, put_many", many, DURABLE_TARGET))
        lines.append(_line(f"{name}, {THREADS} threads", threads, DURABLE_TARGET))
    return lines


def attaching(settings: Settings) -> list[Line]:
    """A clone of a large store, until it can be read; and what it costs when nothing happens."""
    entries = settings.count(ENTRIES)
    with Children(settings.work / "data-store-attach") as children:
        master = children.start(MEMBERS, "master", entries=entries)
        port = master.hear()["port"]
        attacher = children.start(MEMBERS, "attacher", ports=[port])
        attacher.hear()
        took = [attacher.ask(entries=entries)["ms"] for _ in range(settings.repeats + 1)][1:]
        clone = children.start(MEMBERS, "clone", ports=[port])
        clone.hear()
        time.sleep(CALM_S)
        before = clone.ask(do="frames")
        time.sleep(IDLE_S)
        after = clone.ask(do="frames")
    sent, received = ((after[key] - before[key]) / IDLE_S for key in ("sent", "received"))
    middle = median(took)
    return [
        Line(
            f"data store: attach a clone to {entries:,} entries",
            f"{middle:.0f} ms median, {max(took):.0f} ms longest",
            f"< {ATTACH_MS:.0f} ms",
            met=middle < ATTACH_MS,
            numbers={"median_ms": middle, "max_ms": max(took)},
        ),
        Line(
            "data store: frames a second of an idle clone, sent / received",
            f"{sent:.1f} / {received:.1f}",
            f"<= {IDLE_TARGET:g} each way",
            met=max(sent, received) <= IDLE_TARGET,
            numbers={"sent_per_s": sent, "received_per_s": received},
        ),
    ]


def data_stores(settings: Settings) -> list[Line]:
    """All of it."""
    lines = []
    for measure in (in_memory, polled, durable, attaching):
        lines += measure(settings)
    return lines
