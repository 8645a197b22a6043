"""The frame of commands that follow: they print what comes until a bound ends them, or Ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias, TypeVar

import typer
from typer import Option

from chappe.cli.console import check_reader, exit_code, warn, write_out
from chappe.data.markup import are

if TYPE_CHECKING:
    from chappe.api.mesh.source import Source

CHUNK: Final = 256  # items printed at once
POLL_S: Final = 0.25

Seconds: TypeAlias = Annotated[float | None, Option(min=0.0, metavar="S", help="End after this long.")]
Changes: TypeAlias = Annotated[int | None, Option(min=1, metavar="N", help="End after N changes.")]

T = TypeVar("T")


class UntilInterrupted:
    """Ends well on Ctrl-C and SIGTERM, but with an exit code if a bound was given, which was not reached.

    It is not a generator: a signal that came early would raise an error of the generator's own.
    """

    def __init__(self, *bounds: object) -> None:
        self._bounded = any(each is not None for each in bounds)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, stop: BaseException | None, _trace: object) -> bool:
        if isinstance(stop, KeyboardInterrupt) and self._bounded:
            raise typer.Exit(exit_code(stop)) from None
        return isinstance(stop, KeyboardInterrupt)


def batches(get_many: Callable[[int, float], list[T]], count: int | None, seconds: float | None) -> Iterator[list[T]]:
    """Yield batches of what comes: ``count`` items in all, and for ``seconds`` at most.

    Now and then an empty batch comes. Raises BrokenPipeError once nobody reads standard output any more.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while count is None or count > 0:
        left = POLL_S if end is None else min(POLL_S, end - time.monotonic())
        if left <= 0:
            return
        found = get_many(CHUNK if count is None else min(CHUNK, count), left)
        if not found:
            check_reader()
        yield found
        count = None if count is None else count - len(found)


def print_changes(watched: Source[T], render: Callable[[T], bytes], count: int | None, seconds: float | None) -> None:
    """Print changes as they come, and at the end the number that was dropped."""
    try:
        for found in batches(watched.get_many, count, seconds):
            write_out(b"".join(map(render, found)))
    finally:
        if watched.dropped:
            warn(f"{are(watched.dropped, 'change')} not shown: this was too slow")
