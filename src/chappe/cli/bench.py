"""``chappe bench``: throughput and latency of log, mesh and shared state on this machine, by processes of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeAlias

import typer
from typer import Context, Option

from chappe.cli import options
from chappe.cli.console import Bar, answers, exit_code, need_files, say, show_json, warn
from chappe.cli.units import human_bytes, parse_bytes, quantity
from chappe.data.markup import many
from chappe.errors import ChappeError, StorageError, UsageError

if TYPE_CHECKING:
    from chappe.benchmark.load.crew import Crew
    from chappe.benchmark.load.frame import SourceLoad
    from chappe.benchmark.load.report import LoadReport

app = typer.Typer(
    name="bench",
    help="Measure this machine: throughput and latency of log, mesh and shared state.",
    no_args_is_help=True,
)

SECONDS: Final = 5.0
SIZE: Final = "100"
BATCH: Final = 500
SIZE_MAX: Final = 1 << 20
CALL_BYTES_MAX: Final = 64 << 20
APART_MAX_S: Final = 5.0  # between two calls of a source; a run in which nothing arrives for 10 s is over
RATE_REACHED: Final = 0.95
STEPS: Final = 1_000  # of the bar
BAR: Final = 40  # characters
WIDTH: Final = 120

Seconds: TypeAlias = Annotated[
    float | None, Option(min=0.1, max=86_400.0, help="How long to send; 5, unless a count is given.", metavar="SECONDS")
]
Size: TypeAlias = Annotated[str, Option(metavar="SIZE", help="Of each, such as 100 or 4KiB; from 16 to 1MiB.")]
Rate: TypeAlias = Annotated[
    float | None,
    Option(min=0.1, max=1e9, metavar="N", help="How many a second, all together; without it as fast as possible."),
]
Batch: TypeAlias = Annotated[
    int | None, Option(min=1, max=10_000, metavar="N", help="How many in one call; 500, and 1 with --rate.")
]
Directory: TypeAlias = Annotated[
    Path | None,
    Option(
        metavar="DIRECTORY", help="Where files lie during the run, on the disk to measure; by default a temporary one."
    ),
]


@app.command(epilog="chappe bench log --rate 10000 --consumers 2 measures the latency at 10,000 records a second.")
def log(
    context: Context,
    seconds: Seconds = None,
    records: Annotated[int | None, Option(min=1, metavar="N", help="How many records to send, all together.")] = None,
    size: Size = SIZE,
    producers: Annotated[int, Option(min=1, max=100, metavar="N", help="Processes that send.")] = 1,
    consumers: Annotated[int, Option(min=0, max=100, metavar="N", help="Processes that each read all of it.")] = 1,
    rate: Rate = None,
    batch: Batch = None,
    min_acks: Annotated[int, Option(min=0, max=100, metavar="N", help="Stores that must have a record.")] = 1,
    directory: Directory = None,
    tower: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="Measure the stores that run there; without it, a tower and store of its own."),
    ] = None,
    listen: options.Listen = options.LISTEN,
    topic: Annotated[
        str | None, Option(metavar="TOPIC", help="With --tower: the topic to write, chappe.bench by default.")
    ] = None,
    acting: options.Acting = None,
    plain: options.Plain = False,
    as_json: options.Json = False,
) -> None:
    """Measure the log: producers, a store and consumers, each a process."""
    from chappe.benchmark.load import log as work

    run = _LoadRun(context, "log", "record", seconds, records, size, producers, rate, batch, work.SIZE_MIN)
    where: dict[str, Any] = {}
    if tower is None:
        if topic is not None:
            raise UsageError("--topic is for stores that run already: give --tower, too")
        if min_acks > 1:
            raise UsageError("a store of its own is one: --min-acks is 0 or 1, or give --tower of several stores")
    else:
        if directory is not None:
            raise UsageError("--directory is for a store of its own, and --tower names others: give one of them")
        options.be(acting, plain)
        if not answers(tower):
            raise ChappeError(f"no tower answers at {tower}: start one with chappe up, or leave out --tower")
        where = {"tower": tower, "listen": listen, "security": "plain" if plain else None}
    name = options.written_topic(topic or "chappe.bench")
    need_files(producers + consumers + 2, "others")
    with _scratch(directory, tower is None) as scratch:
        at = f"the tower at {tower}, topic {name}" if scratch is None else f"its own tower, and a store in {scratch}"
        run.begin(f"{at}: {many(producers, 'producer')}, {many(consumers, 'consumer')}", as_json)

        def start(crew: Crew, loads: Sequence[SourceLoad]) -> None:
            work.start(crew, loads, consumers, directory=scratch, where=where, topic=name, min_acks=min_acks)

        report = run.measure(start, as_json)
    if scratch is None and not as_json:
        say(f"the records stay in topic {name} of the stores there; processor time of stores and tower is not counted")
    run.end(report, as_json)


@app.command(epilog="chappe bench mesh --fan-out 4 --hops 2 sends everything to four, over an endpoint in between.")
def mesh(
    context: Context,
    seconds: Seconds = None,
    messages: Annotated[int | None, Option(min=1, metavar="N", help="How many messages to send, all together.")] = None,
    size: Size = SIZE,
    publishers: Annotated[int, Option(min=1, max=100, metavar="N", help="Processes that publish.")] = 1,
    fan_out: Annotated[int, Option(min=1, max=100, metavar="N", help="Subscribers that each get all of it.")] = 1,
    hops: Annotated[int, Option(min=1, max=16, metavar="N", help="Links from a publisher to a subscriber.")] = 1,
    churn: Annotated[
        int, Option(min=0, max=100, metavar="N", help="Stress: further endpoints that come and go all the time.")
    ] = 0,
    rate: Rate = None,
    batch: Batch = None,
    as_json: options.Json = False,
) -> None:
    """Measure the mesh: publishers and subscribers, each a process with an endpoint."""
    from chappe.benchmark.load import mesh as work

    run = _LoadRun(context, "mesh", "message", seconds, messages, size, publishers, rate, batch, work.SIZE_MIN)
    need_files(publishers + fan_out + hops + churn, "others")
    over = f"over {many(hops, 'hop')}" + (f", {many(churn, 'visitor')}" if churn else "")
    run.begin(f"{many(publishers, 'publisher')}, {many(fan_out, 'subscriber')} {over}", as_json)
    run.end(run.measure(lambda crew, loads: work.start(crew, loads, fan_out, hops, churn), as_json), as_json)


@app.command(epilog="chappe bench state --kind chain --writers 8 has eight programs write to three servers.")
def state(
    context: Context,
    kind: Annotated[Literal["data-store", "map", "chain"], Option(help="What to measure.")] = "data-store",
    seconds: Seconds = None,
    puts: Annotated[int | None, Option(min=1, metavar="N", help="How many puts to send, all together.")] = None,
    size: Size = SIZE,
    writers: Annotated[int, Option(min=1, max=100, metavar="N", help="Processes that put.")] = 1,
    clones: Annotated[
        int | None, Option(min=0, max=100, metavar="N", help="Clones, or clients of a map, that see every put; 2.")
    ] = None,
    servers: Annotated[int | None, Option(min=1, max=16, metavar="N", help="Servers of a chain; 3.")] = None,
    rate: Rate = None,
    batch: Annotated[
        int, Option(min=1, max=10_000, metavar="N", help="Puts under way at once; the next ones wait for them.")
    ] = 1,
    directory: Directory = None,
    as_json: options.Json = False,
) -> None:
    """Measure shared state: confirmed puts to a data store, a map or a chain, and when others see them."""
    from chappe.benchmark.load import state as work

    if kind == "chain" and clones is not None:
        raise UsageError("--clones is for data stores and maps: a chain has --servers")
    if kind != "chain" and (servers is not None or directory is not None):
        raise UsageError("--servers and --directory are for a chain: give --kind chain, too")
    run = _LoadRun(context, "state", "put", seconds, puts, size, writers, rate, batch, work.SIZE_MIN)
    followers, members = 2 if clones is None else clones, servers or 3
    need_files(writers + followers + members, "others")
    with _scratch(directory, kind == "chain") as scratch:
        of = {"data-store": "a data store in memory", "map": "a shared map in memory"}.get(kind)
        of = of or f"a chain of {many(members, 'server')} in {scratch}"
        seen = "" if kind == "chain" else f", {many(followers, 'clone' if kind == 'data-store' else 'client')}"
        run.begin(f"{of}: {many(writers, 'writer')}{seen}", as_json)
        report = run.measure(
            lambda crew, loads: work.start(crew, loads, kind, followers, members, scratch or Path()), as_json
        )
    run.end(report, as_json)


class _LoadRun:
    def __init__(
        self,
        context: Context,
        bench: str,
        unit: str,
        seconds: float | None,
        count: int | None,
        size: str,
        sources: int,
        rate: float | None,
        batch: int | None,
        size_min: int,
    ) -> None:
        from chappe.benchmark.load.frame import SourceLoad

        self._bench, self._unit, self._rate = bench, unit, rate
        self._options = {name: value for name, value in context.params.items() if value is not None}
        for name in ("as_json", "directory", "acting", "plain"):
            self._options.pop(name, None)
        self._size = parse_bytes(size)
        if not size_min <= self._size <= SIZE_MAX:
            raise UsageError(f"--size is from {size_min} bytes, which a stamp needs, to 1MiB, not {size}")
        batch = batch or (BATCH if rate is None else 1)
        if batch * self._size > CALL_BYTES_MAX:
            raise UsageError(f"{batch:,} {unit}s of {self._size:,} bytes in one call are more than 64 MiB")
        if rate is not None and batch * sources / rate > APART_MAX_S:
            raise UsageError(f"each process would send only every {batch * sources / rate:,.0f} s: raise --rate")
        if count is not None and count < sources:
            raise UsageError(f"{count:,} {unit}s are too few for {sources:,} processes to send some each")
        self._seconds = SECONDS if seconds is None and count is None else seconds
        self._options |= {"size": self._size, "batch": batch, "seconds": self._seconds}
        each, more = divmod(count or 0, sources)
        self._loads = [
            SourceLoad(
                None if count is None else each + (number < more),
                self._seconds,
                self._size,
                batch,
                None if rate is None else rate / sources,
                number / sources,
            )
            for number in range(sources)
        ]
        self._batch, self._count = batch, count
        self._stopped: KeyboardInterrupt | None = None

    def begin(self, what: str, as_json: bool) -> None:
        if as_json:
            return
        parts = [what, f"{self._unit}s of {human_bytes(self._size)}", f"{self._batch:,} a call"]
        parts.append("as fast as possible" if self._rate is None else f"{self._rate:,.15g} a second")
        if self._count is not None:
            parts.append(f"{self._count:,} of them")
        if self._seconds is not None:
            parts.append(f"{self._seconds:g} s")
        say(", ".join(parts))

    def measure(self, start: Callable[[Crew, Sequence[SourceLoad]], None], as_json: bool) -> LoadReport:
        from chappe.benchmark.load.crew import Crew
        from chappe.benchmark.load.report import LoadReport

        with Bar("starting", quiet=as_json) as bar:
            with Crew(lambda text, share: bar.update(text, int(share * STEPS), STEPS)) as crew:
                start(crew, self._loads)
                reason, cut = crew.run(self._unit, self._loads)
            self._stopped = crew.stopped
        return LoadReport(self._bench, self._unit, self._size, self._options, self._rate, crew.members, reason, cut)

    def end(self, report: LoadReport, as_json: bool) -> None:
        if as_json:
            show_json(report.facts())
        else:
            _show(report)
        for trouble in report.troubles():
            warn(trouble)
        if self._stopped is not None:
            raise typer.Exit(exit_code(self._stopped)) from None
        if not report.complete:
            raise typer.Exit(1)


@contextmanager
def _scratch(directory: Path | None, wanted: bool) -> Iterator[Path | None]:
    if not wanted:
        yield None
        return
    try:
        made = tempfile.TemporaryDirectory(prefix="chappe-bench-", dir=directory, ignore_cleanup_errors=True)
    except OSError as error:
        raise StorageError(f"{directory or tempfile.gettempdir()}: cannot be used: {error.strerror}") from error
    with made as path:
        yield Path(path)


LATENCY_OF: Final = {
    "stored": "until stored",
    "consumed": "until consumed",
    "received": "until received",
    "peered": "until peered",
    "confirmed": "until confirmed",
    "visible": "until visible",
}


def _show(report: LoadReport) -> None:
    from chappe.benchmark.load.histogram import PERCENTILES
    from chappe.benchmark.load.report import LATENCIES, RATES, RATES_SPARE, STEPS, rate_rows
    from chappe.cli.charts import amounts, bar
    from chappe.cli.ping import readable
    from chappe.cli.screen import Fitting, wide_console
    from chappe.cli.units import delay

    console = wide_console(WIDTH)
    if not report.complete:
        print("PARTIAL: not everything was sent, arrived and was confirmed; the reasons are below")
    columns = ("processes", f"{report.unit}s", *RATES[2:])
    spare = tuple(columns[RATES.index(each)] for each in RATES_SPARE)
    console.print(Fitting(columns, list(rate_rows(report)), left=columns[:1], spare=spare))
    found = report.latencies()
    if found:
        rows = [
            (
                LATENCY_OF[name],
                f"{each.count:,}",
                *(readable(each.percentile_ns(percent) / 1e9) for percent in PERCENTILES),
                readable(each.most_ns / 1e9),
            )
            for name, each in found.items()
        ]
        print()
        console.print(Fitting(LATENCIES, rows, left=LATENCIES[:1], spare=("count", "p90")))
    over_time = report.over_time()
    if report.seconds:
        step_s = report.seconds / STEPS
        most = quantity(max(over_time) / step_s)
        print(f"\n{report.unit}s over time  {amounts(over_time)}  at most {most}/s; a character is {delay(step_s)}")
    if found:
        name = next(iter(found))  # the way to those that take it, where there are any
        octaves = found[name].octaves()
        most_of = max(count for _, _, count in octaves)
        print(f"\nlatency {LATENCY_OF[name]}")
        for low, high, count in octaves:
            line = f"{readable(low / 1e9):>9} - {readable(high / 1e9):<9} {count:>12,}  {bar(count, most_of, BAR)}"
            print(line.rstrip())
        if report.wanted_per_s is None:
            print("at full speed most of a latency is the wait behind others: --rate N measures it at a rate")
    (sources,) = report.groups("sources")
    if report.wanted_per_s is not None and sources.per_s < RATE_REACHED * report.wanted_per_s:
        print(f"the rate was not reached: {sources.per_s:,.0f} of {report.wanted_per_s:,.15g} a second")
