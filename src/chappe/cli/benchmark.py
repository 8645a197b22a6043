"""``chappe mesh``: a benchmark of a mesh, made of recordings and run by a process for each endpoint."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer import Argument, Option
from typer.core import TyperCommand

from chappe.cli import options
from chappe.cli.console import Bar, need_files, say, show_json, warn
from chappe.data.markup import many
from chappe.errors import ConfigError, StorageError, UsageError

if TYPE_CHECKING:
    from chappe.benchmark.report import BenchmarkReport

app = typer.Typer(
    name="mesh", help="Benchmark a mesh: play what endpoints have recorded, on this machine.", no_args_is_help=True
)

STDIN: Final = "-"
HERE: Final = Path("-")  # where --plot draws without a file
CURVE: Final = 40  # characters
BAR: Final = 16
TIMEOUT_S: Final = 300.0


@app.command()
def generate(
    directories: Annotated[list[Path], Argument(metavar="DIRECTORY...", help="The recordings, one for each endpoint.")],
    output: Annotated[
        Path | None, Option("--output", "-o", metavar="FILE", help="Where to write; standard output by default.")
    ] = None,
    exclude: Annotated[
        list[str] | None, Option("--exclude", "-e", metavar="NODE", help="Leave this one out: its directory's name.")
    ] = None,
) -> None:
    """Make a benchmark's configuration from what endpoints have recorded.

    Who receives how much follows from their topics and peerings.
    """
    from chappe.benchmark import config
    from chappe.benchmark.generate import generate as nodes_of
    from chappe.benchmark.generate import read

    recordings = []
    with Bar("reading recordings", quiet=False) as bar:
        for place, directory in enumerate(directories):
            bar.update(f"reading {directory}", place, len(directories))
            recordings.append(read(directory, warn))
    nodes = nodes_of(recordings, exclude or (), warn)
    text = config.render(nodes).encode("utf-8", "surrogateescape")
    if output is None:
        sys.stdout.buffer.write(text)
    else:
        try:
            output.write_bytes(text)
        except OSError as error:
            raise StorageError(f"{output}: cannot be written: {error.strerror}") from error
    sent = sum(sum(each.published.values()) for each in recordings if each.name not in (exclude or ()))
    inputs = sum(node.num_inputs for node in nodes)
    say(f"{many(len(nodes), 'node')}: {many(sent, 'message')} to send, {inputs:,} to receive")


class _PlotCommand(TyperCommand):
    """Hands over ``-`` for a ``--plot`` without a file: options of Typer need a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for at, each in enumerate(args):
            if each == "--plot" and (at + 1 == len(args) or args[at + 1].startswith("--")):
                args = [*args[: at + 1], str(HERE), *args[at + 1 :]]
                break
        return super().parse_args(ctx, args)


@app.command(cls=_PlotCommand)
def benchmark(
    file: Annotated[
        str, Argument(metavar="FILE", help="A configuration, as `generate` makes it; - is standard input.")
    ],
    timeout: Annotated[
        float, Option(min=1.0, max=86_400.0, metavar="SECONDS", help="End after this long, with the results so far.")
    ] = TIMEOUT_S,
    plot: Annotated[
        Path | None,
        Option(metavar="[FILE.svg]", help="Draw what came out, too: into a file, or without one in the terminal."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Run a benchmark: a process for each node sends what was recorded; loops are fine.

    Fails if anything that was expected is missing, and says what.
    """
    from chappe.benchmark import config
    from chappe.benchmark.run import run

    in_terminal = plot == HERE
    if in_terminal:
        if as_json:
            raise UsageError("give only one of --json and --plot without a file: both print")
        plot = None
    if plot is not None:
        if plot.suffix != ".svg":
            raise UsageError(f"{plot}: pictures are SVG: give a file that ends in .svg, or none after --plot")
        if not plot.absolute().parent.is_dir():
            raise UsageError(f"{plot}: there is no such directory")
    text = None
    if file == STDIN:
        text = sys.stdin.buffer.read(config.FILE_BYTES_MAX + 1).decode("utf-8", "surrogateescape")
        if len(text) > config.FILE_BYTES_MAX:
            raise ConfigError(
                f"standard input has more than {config.FILE_BYTES_MAX:,} bytes: this is not a configuration"
            )
    nodes = config.load(Path(file), text)
    need_files(len(nodes), "nodes")
    with Bar("starting nodes", quiet=as_json) as bar:
        report = run(nodes, timeout, bar.update)
    if as_json:
        show_json(report.facts())
    else:
        _show(report)
    if in_terminal:
        _draw(report)
    if plot is not None:
        from chappe.benchmark.plot import draw

        try:
            plot.write_text(draw(report))
        except OSError as error:
            raise StorageError(f"{plot}: cannot be written: {error.strerror}") from error
    for trouble in report.troubles():
        warn(trouble)
    if not report.complete:
        raise typer.Exit(1)


def _show(report: BenchmarkReport) -> None:
    from chappe.benchmark.report import COLUMNS, SPARE, rows
    from chappe.cli.screen import Fitting, wide_console

    total = report.total()
    wide_console(160).print(Fitting(COLUMNS, rows(report.nodes, total), left=COLUMNS[:1], spare=SPARE))
    per = total["frames_per_received"]
    frames = "" if per is None else f", {per:g} frames for each"
    rate = f"{total['received_per_s']:,.0f}/s"
    print(f"{total['received']:,} messages received in {total['seconds']:.3f} s, {rate}{frames}")


def _draw(report: BenchmarkReport) -> None:
    from chappe.benchmark.report import COLUMNS
    from chappe.cli.charts import amounts, bar
    from chappe.cli.screen import Fitting, wide_console
    from chappe.cli.units import delay, quantity, rate

    nodes = report.nodes
    seconds = max([each.seconds for each in nodes], default=0.0)
    received = {each.name: report.received_by_step(each, CURVE, seconds) for each in nodes}
    most_in = max([each.in_per_s for each in nodes], default=0.0)
    most_out = max([each.out_per_s for each in nodes], default=0.0)
    columns = (COLUMNS[0], "received", "at its fastest", "in/s", "out/s")
    step_s = seconds / CURVE
    rows = [
        (
            each.name,
            amounts(received[each.name]),
            rate(max(received[each.name]) / step_s) if step_s else "",
            f"{quantity(each.in_per_s):>6} {bar(each.in_per_s, most_in, BAR)}" if each.received else "",
            f"{quantity(each.out_per_s):>6} {bar(each.out_per_s, most_out, BAR)}" if each.sent else "",
        )
        for each in nodes
    ]
    left = (columns[0], columns[1], *columns[3:])
    print()
    wide_console(160).print(Fitting(columns, rows, left=left, spare=(columns[2], columns[4], columns[3])))
    if seconds:
        print(f"a character of a curve is {delay(step_s)}; curves go from 0 to their own peak")
