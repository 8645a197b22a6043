"""What a long-running command shows: a picture that is kept up to date in a terminal, lines now and then elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Final

from rich.console import Console, RenderableType
from rich.live import Live

LINES_EVERY_S: Final = 5.0  # without a terminal


class Screen:
    """A context; call ``show`` several times a second. ``quiet`` shows nothing."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._lines_at = time.monotonic()
        self._live: Live | None = None
        if console.is_terminal and not quiet:
            # what is printed meanwhile appears above the picture, if it goes to the same terminal
            self._live = Live(
                console=console,
                auto_refresh=False,
                transient=True,
                redirect_stdout=sys.stdout.isatty(),
                redirect_stderr=False,
            )

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, picture: Callable[[], RenderableType], lines: Callable[[], Iterable[str]]) -> None:
        """Show how things are now; only what is shown is made."""
        if self._live is not None:
            self._live.update(picture(), refresh=True)
        elif not self._quiet and time.monotonic() >= self._lines_at:
            self._lines_at = time.monotonic() + LINES_EVERY_S
            for line in lines():
                self._console.print(line, soft_wrap=True, highlight=False, markup=False)
