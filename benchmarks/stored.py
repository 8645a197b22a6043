"""Producer to a store, acknowledged after fsync; and a late consumer that reads it all from the store."""

from __future__ import annotations

from statistics import median

from benchmarks.children import Child, Children
from benchmarks.link import RECORD_BYTES
from benchmarks.outcome import Line, Rate, per_second, times
from benchmarks.rounds import WARM_UP, raw_pair, tower
from benchmarks.settings import Settings

STORED = 3_000_000
STORED_TARGET = 1.5e6
FILE_SHARE = 1 / 2
LATE = 5_000_000
LATE_TARGET = 5e6
LATE_SHARE = 0.8  # of raw frames


def start_store(children: Children, settings: Settings, address: str, name: str, **options: object) -> Child:
    """A new store that is open; in the run's directory, unless ``options`` have another one."""
    where = {"directory": str(settings.work / f"store-{name}"), **options}
    store = children.member("store", tower=address, **where)
    store.hear()
    return store


def acknowledged(settings: Settings) -> list[Line]:
    """Sending and ``flush``, beside the same bytes written to a plain file with as many fdatasyncs."""
    return [_acknowledged(settings, arrow=arrow) for arrow in (True, False)]


def _acknowledged(settings: Settings, *, arrow: bool) -> Line:
    count = settings.count(STORED)
    rates, plain_rates, cpu_us = [], [], []
    name = f"stored-{_from(arrow)}"
    with Children(settings.work / name) as children:
        address = tower(children)
        store = start_store(children, settings, address, name)
        producer = children.member("producer", tower=address, single=False, arrow=arrow, acks=1)
        plain = children.raw("writer", path=str(settings.work / "plain"))
        producer.hear()
        plain.hear()
        producer.ask(count=WARM_UP)
        syncs = 0
        for _ in range(settings.repeats):
            before = store.ask()
            facts = producer.ask(count=count)
            after = store.ask()
            syncs = after["syncs"] - before["syncs"]
            rates.append(count / ((facts["end"] - facts["start"]) / 1e9))
            cpu_us.append({"producer": facts["cpu_s"], "store": after["cpu_s"] - before["cpu_s"]})
            wrote = plain.ask(bytes=count * RECORD_BYTES, syncs=syncs)
            plain_rates.append(count / ((wrote["end"] - wrote["start"]) / 1e9))
    middle = {name: 1e6 * median(each[name] for each in cpu_us) / count for name in cpu_us[0]}
    rate, raw = Rate(tuple(rates), middle), Rate(tuple(plain_rates))
    ratio = rate.median / raw.median
    return Line(
        f"produce {_from(arrow)} to a store, acknowledged after fsync",
        str(rate),
        f">= {per_second(STORED_TARGET)}, >= {FILE_SHARE}x of a plain file",
        f"plain file, {syncs} fdatasyncs: {raw}",
        times(ratio),
        rate.median >= STORED_TARGET and ratio >= FILE_SHARE,
        rate.note(),
        {**rate.numbers("chappe"), **raw.numbers("plain_file"), "syncs": syncs},
    )


def _from(arrow: bool) -> str:
    return "Arrow" if arrow else "lists"


def catch_up(settings: Settings) -> list[Line]:
    """A consumer made after the producer is gone; timed from its constructor to its last record."""
    return [_catch_up(settings, arrow=arrow) for arrow in (True, False)]


def _catch_up(settings: Settings, *, arrow: bool) -> Line:
    count = settings.count(LATE)
    rates, cpu_us = [], []
    name = f"catch-up-{_from(arrow)}"
    with Children(settings.work / name) as children:
        address = tower(children)
        store = start_store(children, settings, address, name)
        producer = children.member("producer", tower=address, single=False, arrow=arrow, acks=1)
        producer.hear()
        producer.ask(count=count)
        producer.finish()
        raw = raw_pair(children, single=False)
        raw.warm_up()
        for _ in range(settings.repeats):
            consumer = children.member("late_consumer", tower=address, single=False)
            consumer.hear()
            before = store.cpu_s()
            facts = consumer.ask(count=count)
            rates.append(count / ((facts["end"] - facts["start"]) / 1e9))
            cpu_us.append({"store": store.cpu_s() - before, "consumer": facts["cpu_s"]})
            consumer.kill()
            raw.round(count)
    middle = {name: 1e6 * median(each[name] for each in cpu_us) / count for name in cpu_us[0]}
    rate, frames = Rate(tuple(rates), middle), raw.rate()
    ratio = rate.median / frames.median
    return Line(
        f"catch-up of a late consumer from the store alone, of {_from(arrow)} to Arrow",
        str(rate),
        f">= {per_second(LATE_TARGET)}, >= {LATE_SHARE}x of raw frames",
        f"raw pyzmq, 64 KiB frames: {frames}",
        times(ratio),
        rate.median >= LATE_TARGET and ratio >= LATE_SHARE,
        rate.note(),
        {**rate.numbers("chappe"), **frames.numbers("raw_frames")},
    )
