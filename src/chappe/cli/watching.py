"""The frame of commands that list: with ``--watch`` they list again and again, until Ctrl-C."""

from __future__ import annotations

import inspect
import io
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from datetime import datetime
from functools import partial, wraps
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TextIO, TypeAlias, get_type_hints

from typer import Exit, Option

from chappe.cli.console import check_reader, say, write_out
from chappe.cli.following import UntilInterrupted
from chappe.errors import ChappeError

if TYPE_CHECKING:
    from rich.console import Console

PAUSE_S: Final = 1.0  # between two looks; as long as a look takes, if that is longer

Watch: TypeAlias = Annotated[
    bool, Option("--watch", help="List again every second, until Ctrl-C; without a terminal whenever it has changed.")
]


def watchable(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that lists and ends the option ``--watch``."""

    @wraps(command)
    def watched(*, watch: bool = False, **given: Any) -> None:
        called = getattr(given.get("context"), "invoked_subcommand", None)  # then a group is no command itself
        if watch and called is None:
            repeat(partial(command, **given), as_json=given.get("as_json", False))
        else:
            command(**given)

    hints = {**get_type_hints(command, include_extras=True), "watch": Watch}
    kind = inspect.Parameter.KEYWORD_ONLY
    parameters = [*inspect.signature(command).parameters.values(), inspect.Parameter("watch", kind, default=False)]
    shown = [each.replace(kind=kind, annotation=hints[each.name]) for each in parameters]
    setattr(watched, "__signature__", inspect.Signature(shown))  # noqa: B010
    watched.__annotations__ = hints
    return watched


def repeat(command: Callable[[], None], *, as_json: bool) -> None:
    """Run a command until Ctrl-C and show what it prints.

    In a terminal that is a picture; elsewhere, and as JSON, it is printed when it has changed. A failure of the first
    run ends it; a later one is shown, and may be over at the next run.
    """
    with UntilInterrupted():
        if not as_json and sys.stdout.isatty():
            from chappe.cli.screen import People, is_terminal

            if is_terminal(console := People()):
                _draw(_looks(command), console)
                return
        _print_changes(_looks(command), b"" if as_json else b"\n")


class _Look(NamedTuple):
    """The output of one run."""

    out: bytes
    err: str


class _Paper(io.TextIOWrapper):
    """Keeps what is written to it, and passes for the stream that it stands for."""

    def __init__(self, stream: TextIO) -> None:
        self._kept = io.BytesIO()
        self._is_terminal = stream.isatty()
        super().__init__(self._kept, encoding=stream.encoding, errors=stream.errors, write_through=True)

    def isatty(self) -> bool:
        return self._is_terminal

    def read_all(self) -> bytes:
        self.flush()
        return self._kept.getvalue()


def _looks(command: Callable[[], None]) -> Iterator[_Look]:
    first = True
    while True:
        began = time.monotonic()
        out, err = _Paper(sys.stdout), _Paper(sys.stderr)
        failure: Exception | None = None
        try:
            with redirect_stdout(out), redirect_stderr(err):
                command()
        except (ChappeError, OSError, Exit) as error:
            failure = error
        told = err.read_all().decode(err.encoding, "replace")
        if failure is not None and first:
            write_out(out.read_all())
            say(told.rstrip("\n"))
            raise failure
        if failure is not None and not isinstance(failure, Exit):
            told += f"chappe: {failure}\n"
        first = False
        yield _Look(out.read_all(), told)
        time.sleep(max(PAUSE_S, time.monotonic() - began))


def _draw(looks: Iterable[_Look], console: Console) -> None:
    from rich.console import Group
    from rich.text import Text

    from chappe.cli.screen import Screen

    last = b""
    try:
        with Screen(console) as screen:
            for look in looks:
                last = look.out
                text = Text.from_ansi(_text(last) + look.err)
                head = Text(f"{datetime.now():%H:%M:%S}, until Ctrl-C", style="dim")
                screen.show(partial(Group, head, text), list)
    finally:
        print(_text(last), end="")  # stays


def _text(out: bytes) -> str:
    return out.decode(sys.stdout.encoding or "utf-8", "replace")


def _print_changes(looks: Iterable[_Look], between: bytes) -> None:
    before: _Look | None = None
    for look in looks:
        check_reader()
        if before is None or look.out != before.out:
            write_out((between if before is not None and look.out else b"") + look.out)
        if look.err and (before is None or look.err != before.err):
            say(look.err.rstrip("\n"))
        before = look
