"""A progress bar with rate and time left on a terminal; elsewhere a line now and then."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Self

if TYPE_CHECKING:
    from rich.progress import Progress

LINE_EVERY_S: Final = 5.0  # without a terminal


class Bar:
    """A context that shows how far something is on standard error; ``quiet`` shows nothing."""

    def __init__(self, text: str, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None
        if quiet:
            return
        from rich.console import Console  # loaded only to show something: it takes a while
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(file=sys.stderr)
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, transient=True, redirect_stdout=sys.stdout.isatty())
            self._task = self._bar.add_task(text, total=None)
        self._line_at = time.monotonic() + LINE_EVERY_S

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def update(self, text: str, done: int, total: int | None) -> None:
        """Show this; ``total`` None: nobody knows."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total, description=text)
        elif not self._quiet and time.monotonic() >= self._line_at:
            self._line_at = time.monotonic() + LINE_EVERY_S
            self._console.print(text, soft_wrap=True, highlight=False, markup=False)


def left_text(seconds: float | None) -> str:
    """``12 s left``, ``3:04 left``, ``2:03:04 left``, ``3 days 2:03:04 left``; nothing if nobody knows."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f", {seconds:.0f} s left"
    days, rest = divmod(round(seconds), 86_400)
    hours, rest = divmod(rest, 3600)
    clock = f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if days or hours else f"{rest // 60}:{rest % 60:02d}"
    return f", {f'{days} days ' if days else ''}{clock} left"
