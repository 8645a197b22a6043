"""``chappe consume --exec``: worker processes that run a program have the records, and nothing is printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import typer
from typer import Option

from chappe.cli.console import say, warn
from chappe.cli.following import UntilInterrupted
from chappe.data.markup import are
from chappe.errors import OffsetOutOfRange, UsageError

if TYPE_CHECKING:
    from chappe import ShardedConsumer


@dataclass(frozen=True, slots=True)
class Working:
    """Options of worker processes, which get the records instead of standard output."""

    PANEL: ClassVar = "Workers"

    program: Annotated[
        str | None,
        Option(
            "--exec",
            metavar="PROGRAM",
            help="Program and arguments; it gets a line of JSON for each record (or --output) on "
            "standard input, and answers `ok`.",
        ),
    ] = None
    workers: Annotated[int | None, Option(min=1, max=1024, metavar="N", help="How many of them; 2 by default.")] = None
    by: Annotated[
        Literal["key", "topic"] | None, Option(help="Assign records to workers by key or by topic; key by default.")
    ] = None
    identity: Annotated[
        str | None,
        Option(metavar="NAME", help="Go on after the records that an earlier run of this name has finished."),
    ] = None
    patience: Annotated[
        float | None, Option(min=0.1, metavar="SECONDS", help="Replace a worker that finishes no record for this long.")
    ] = None

    cpus: Annotated[
        str | None,
        Option(metavar="N,N,...", help="Processors (Linux): the first reads, workers have the others in turn."),
    ] = None

    def check(self, *, count: int | None, timeout: float | None, until_end: bool) -> None:
        """Raise UsageError for options that do not go together."""
        if self.program is None:
            for name, value in asdict(self).items():
                if value is not None:
                    raise UsageError(f"--{name} is for workers, which --exec names")
        elif count is not None:
            raise UsageError("--count does not go with --exec: workers have all that comes")
        elif timeout is not None and not until_end:
            raise UsageError("--timeout goes with --exec only where --until-end does")

    def processors(self) -> list[int] | None:
        """Parse the numbers of ``--cpus``. Raises UsageError."""
        if self.cpus is None:
            return None
        try:
            return [int(each) for each in self.cpus.split(",")]
        except ValueError:
            raise UsageError(f"--cpus are numbers of processors, such as 0,1,2, not {self.cpus!r}") from None

    def arguments(self) -> list[str]:
        """Split ``--exec`` into the program and its arguments. Raises UsageError."""
        try:
            return shlex.split(self.program or "")
        except ValueError as error:
            raise UsageError(f"--exec {self.program}: {error}") from None


def work_off(
    working: Working, topics: list[str], until_end: bool, missing: Callable[[list[object]], int], **options: Any
) -> None:
    """Let workers process all records until the end or a signal. ``missing`` counts the lost records of events."""
    from chappe import ShardedConsumer

    consumer = ShardedConsumer(
        working.arguments(),
        *topics,
        workers=working.workers or 2,
        by=working.by or "key",
        identity=working.identity,
        patience_s=working.patience,
        cpus=working.processors(),
        until_end=until_end,
        **options,
    )
    lost = 0
    with consumer:
        try:
            with UntilInterrupted(until_end or None):
                _run(consumer)
        finally:
            found = consumer.progress()
            again = f"; {found.again:,} were handed out again" if found.again else ""
            say(f"{are(found.done, 'record')} done{again}")
            lost = missing(consumer.events())
            if lost:
                warn(f"{are(lost, 'record')} missing in that: nobody has more than that")
    if lost:
        raise typer.Exit(1)


def _run(consumer: ShardedConsumer) -> None:
    while True:
        try:
            consumer.run()
        except OffsetOutOfRange as error:
            warn(f"{error}; skipped")  # other partitions have the offset, this one goes on where it can
        else:
            return
