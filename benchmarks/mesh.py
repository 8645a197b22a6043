"""The mesh between two processes: events a second, ping-pong, new peerings, and fan-out."""

from __future__ import annotations

from statistics import median
from typing import Any

from benchmarks.children import Child, Children, has_original, has_original_members
from benchmarks.outcome import CPU, Line, per_second, times
from benchmarks.rounds import Pair, Together
from benchmarks.settings import Settings

MEMBERS = "benchmarks.mesh_members"
EVENTS = 300_000
ZEEK_EVENTS = 2_000_000
SINGLES = 200_000
FANNED = 100_000
PINGS = 5_000
PEERINGS = 30
FAN = 10
VALUES_TARGET = 150_000.0
PAYLOADS_TARGET = 300_000.0
COLUMNS_TARGET = 1_000_000.0
SINGLE_TARGET = 60_000.0
TLS_SHARE = 0.85
PING_US = 150.0
PING_TIMES = 1.5  # of a stream of TCP without anything around it
PEERING_MS = {"plain": 5.0, "TLS": 10.0}
ORIGINAL_EVENTS = 50_000
ORIGINAL_SHARE = 0.75  # of the original in C++
BINDINGS_TIMES = 12.0  # the original's Python bindings


def keys(settings: Settings) -> str:
    """An authority and a certificate for this run."""
    from chappe.api.keys import make_authority, make_certificate

    home = settings.work / "keys"
    if not home.exists():
        make_authority(home)
        make_certificate(home, "endpoint")
    return str(home)


def member(children: Children, role: str, **options: object) -> Child:
    return children.start(MEMBERS, role, **options)


def _pair(children: Children, how: str, common: dict[str, Any]) -> Pair:
    receiver = member(children, "receiver", how=how, **common)
    sender = member(children, "sender", how=how, ports=[receiver.hear()["port"]], **common)
    sender.hear()
    return Pair(sender, receiver)


def _rate_line(path: str, pair: Pair, target: float | None, original: float | None = None) -> Line:
    rate = pair.rate()
    return Line(
        path,
        str(rate),
        f">= {per_second(target)}" if target else "",
        "" if original is None else f"original's Python bindings: {per_second(original)}",
        "" if original is None else times(rate.median / original),
        met=rate.median >= target if target else None,
        note=rate.note(),
        numbers=rate.numbers("chappe"),
    )


def _original_rate(settings: Settings) -> float | None:
    """Events a second of the original's Python bindings, if they are there."""
    if not has_original():
        return None
    with Children(settings.work / "mesh-original") as children:
        receiver = children.original("receiver")
        sender = children.original("sender", ports=[receiver.hear()["port"]])
        sender.hear()
        pair = Pair(sender, receiver)
        pair.warm_up(2_000)
        for _ in range(settings.repeats):
            pair.round(settings.count(ORIGINAL_EVENTS))
    return pair.rate().median


def _pair_of_originals(children: Children) -> Pair:
    """The original from C++."""
    receiver = children.original_member("receiver")
    sender = children.original_member("sender", ports=[receiver.hear()["port"]])
    sender.hear()
    return Pair(sender, receiver)


def _decoded(pair: Pair, original: Pair | None, bindings: float | None) -> Line:
    rate = pair.rate()
    beside = {} if original is None else {"original, C++": original.rate().median}
    if bindings is not None:
        beside["original's Python bindings"] = bindings
    wanted = {"original, C++": ORIGINAL_SHARE, "original's Python bindings": BINDINGS_TIMES}
    peer = {} if original is None else original.rate().numbers("peer")
    return Line(
        "mesh: one to one, values decoded",
        str(rate),
        ", ".join([f">= {per_second(VALUES_TARGET)}", *(f">= {wanted[who]:g}x of {who}" for who in beside)]),
        "; ".join(f"{who}: {per_second(each)}" for who, each in beside.items()),
        " / ".join(times(rate.median / each) for each in beside.values()),
        rate.median >= VALUES_TARGET and all(rate.median >= wanted[who] * each for who, each in beside.items()),
        rate.note() if original is None else f"{rate.note()}; original, C++: {original.rate().note()}",
        {**rate.numbers("chappe"), **peer},
    )


def throughput(settings: Settings) -> list[Line]:
    """One to one: values decoded, payloads only, one at a time, as columns; plain and TLS."""
    original = _original_rate(settings)
    with Children(settings.work / "mesh") as children:
        encrypted = {"keys": keys(settings)}
        pairs = {
            "values": _pair(children, "values", {}),
            "values, TLS": _pair(children, "values", encrypted),
            "payloads": _pair(children, "payloads", {}),
            "single": _pair(children, "single", {}),
            "columns": _pair(children, "columns", {}),
            "zeek": _pair(children, "zeek", {}),
        }
        if has_original_members():
            pairs["original"] = _pair_of_originals(children)
        counts = {"single": SINGLES, "zeek": ZEEK_EVENTS}
        for pair in pairs.values():
            pair.warm_up()
        for _ in range(settings.repeats):
            for name, pair in pairs.items():
                pair.round(settings.count(counts.get(name, EVENTS)))
    plain, tls = pairs["values"].rate().median, pairs["values, TLS"].rate().median
    encrypted_line = _rate_line("mesh: the same with TLS", pairs["values, TLS"], None)
    return [
        _decoded(pairs["values"], pairs.get("original"), original),
        Line(
            encrypted_line.path,
            encrypted_line.result,
            f">= {TLS_SHARE:.2f}x of plain",
            f"plain: {per_second(plain)}",
            times(tls / plain),
            tls >= TLS_SHARE * plain,
            encrypted_line.note,
            encrypted_line.numbers,
        ),
        _rate_line("mesh: one to one, payloads not decoded", pairs["payloads"], PAYLOADS_TARGET),
        _rate_line("mesh: one to one, as columns", pairs["columns"], None),
        _rate_line("mesh: batches of Zeek, events as columns", pairs["zeek"], COLUMNS_TARGET),
        _rate_line("mesh: publish one at a time, get one at a time", pairs["single"], SINGLE_TARGET, original),
    ]


def forwarding(settings: Settings) -> list[Line]:
    """Three processes in a chain; the one in the middle only passes on."""
    with Children(settings.work / "mesh-chain") as children:
        middle = member(children, "forwarder")
        port = middle.hear()["port"]
        receiver = member(children, "receiver", how="payloads", ports=[port])
        receiver.hear()
        sender = member(children, "sender", how="batch", ports=[port])
        sender.hear()
        pair = Pair(sender, receiver, {"forwarder": middle})
        pair.warm_up()
        for _ in range(settings.repeats):
            pair.round(settings.count(EVENTS))
    return [_rate_line("mesh: through a forwarder, three processes", pair, None)]


def _originals_pings(settings: Settings) -> str:
    """Those of the original, from Python and from C++, for people."""
    found = []
    for who, there in (("original, C++", has_original_members()), ("original's Python bindings", has_original())):
        if not there:
            continue
        with Children(settings.work / f"ping-{who}") as children:
            start = children.original_member if who.endswith("C++") else children.original
            pinger = start("pinger", ports=[start("echo").hear()["port"]])
            pinger.hear()
            pinger.ask(count=500)
            rounds = [pinger.ask(count=settings.count(PINGS)) for _ in range(settings.repeats)]
        p50, p99 = (median(each[key] for each in rounds) for key in ("p50_us", "p99_us"))
        found.append(f"{who}: {p50:.0f} / {p99:.0f} us")
    return "; ".join(found)


def pings(settings: Settings) -> list[Line]:
    """There and back, one after the other; beside a stream of TCP, round by round."""
    lines = []
    original = _originals_pings(settings)
    for name, prefix, common in (
        ("blocking", "", {}),
        ("blocking, TLS", "", {"keys": keys(settings)}),
        ("asyncio", "async_", {}),
    ):
        with Children(settings.work / f"ping-{name}") as children:
            port = (echo := member(children, f"{prefix}echo", **common)).hear()["port"]
            pinger = member(children, f"{prefix}pinger", ports=[port], **common)
            stream = children.raw("socket_pinger", port=children.raw("socket_echo").hear()["port"])
            count = settings.count(PINGS)
            found, raw, cpu_s = [], [], []
            for each in (pinger, stream):
                each.hear()
                each.ask(count=500)
            for _ in range(settings.repeats):
                before = echo.cpu_s()
                found.append(pinger.ask(count=count))
                cpu_s.append({"pinger": found[-1]["cpu_s"], "echo": echo.cpu_s() - before})
                raw.append(stream.ask(count=count))
            assert echo.alive()
        p50, p99 = (median(each[key] for each in found) for key in ("p50_us", "p99_us"))
        raw50, raw99 = (median(each[key] for each in raw) for key in ("p50_us", "p99_us"))
        cpu_us = {f"chappe{CPU}{name}": 1e6 * median(each[name] for each in cpu_s) / count for name in cpu_s[0]}
        beside = f"a stream of TCP: {raw50:.0f} / {raw99:.0f} us"
        lines.append(
            Line(
                f"mesh: ping-pong p50 / p99, {name}",
                f"{p50:.0f} / {p99:.0f} us",
                f"< {PING_US:.0f} us, p50 <= {PING_TIMES:g}x of a stream",
                "; ".join(filter(None, (beside, "" if common or prefix else original))),
                f"{times(p50 / raw50)} / {times(p99 / raw99)}",
                p50 < PING_US and p50 <= PING_TIMES * raw50,
                numbers={"p50_us": p50, "p99_us": p99, "raw_p50_us": raw50, "raw_p99_us": raw99, **cpu_us},
            )
        )
    return lines


def peerings(settings: Settings) -> list[Line]:
    """A new endpoint peers and awaits its peer."""
    lines = []
    for name, common in (("plain", {}), ("TLS", {"keys": keys(settings)})):
        with Children(settings.work / f"peering-{name}") as children:
            there = member(children, "listener", **common).hear()
            dialler = member(children, "dialler", ports=[there["port"]], id=there["id"], **common)
            dialler.hear()
            took = [dialler.ask()["ms"] for _ in range(PEERINGS + 1)][1:]
        middle = median(took)
        lines.append(
            Line(
                f"mesh: peer() and await_peer, {name}",
                f"{middle:.1f} ms median, {max(took):.1f} ms longest",
                f"< {PEERING_MS[name]:.0f} ms",
                met=middle < PEERING_MS[name],
                numbers={"median_ms": middle, "max_ms": max(took)},
            )
        )
    return lines


def fan_out(settings: Settings) -> list[Line]:
    """One publisher and several peers, each a process; beside one peer, in deliveries a second."""
    rates = {}
    for peers in (1, FAN):
        with Children(settings.work / f"fan-{peers}") as children:
            receivers = [member(children, "receiver", how="payloads") for _ in range(peers)]
            ports = [each.hear()["port"] for each in receivers]
            sender = member(children, "sender", how="single", ports=ports, receivers=peers)
            sender.hear()
            pair = Pair(sender, Together(receivers))
            pair.warm_up(2_000)
            for _ in range(settings.repeats):
                pair.round(settings.count(FANNED))
            rates[peers] = pair.rate()
    deliveries = rates[FAN].median * FAN
    return [
        Line(
            f"mesh: fan-out to {FAN} processes, one event at a time",
            f"{per_second(deliveries)} deliveries",
            "not fewer deliveries than to one process",
            f"one process: {per_second(rates[1].median)}",
            times(deliveries / rates[1].median),
            deliveries >= rates[1].median,
            rates[FAN].note(),
            rates[FAN].numbers("chappe"),
        )
    ]


def mesh(settings: Settings) -> list[Line]:
    """All of it."""
    lines = []
    for measure in (throughput, forwarding, pings, peerings, fan_out):
        lines += measure(settings)
    return lines
