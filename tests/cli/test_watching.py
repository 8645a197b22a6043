"""Commands that list, with ``--watch``."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest
from tests.cli.test_screen import Terminal
from tests.cli.test_screen import terminal as terminal
from tests.commands import commands_of, whole_program
from typer import Context, Exit
from typer.core import TyperCommand

from chappe.cli import watching
from chappe.cli.console import Terminated, warn
from chappe.cli.watching import repeat, watchable
from chappe.errors import ChappeError, UsageError

LISTINGS = {
    "topics list", "topics show", "topics config", "groups show", "kv list", "kv history", "map get", "chain status",
    "keys list", "permissions show", "pipeline list", "pipeline status", "node",
}  # fmt: skip
Step = Callable[[], None]


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PAUSE_S", 0.0)


def plays(*steps: str | BaseException) -> Step:
    """A command that prints one text after the other, and is interrupted then."""
    left = [*steps, KeyboardInterrupt()]

    def command() -> None:
        step = left.pop(0)
        if isinstance(step, BaseException):
            warn("a line before")
            raise step
        sys.stdout.buffer.write(step.encode()) if step.startswith("raw") else print(step)

    return command


def test_whatever_lists_can_be_watched_and_has_json() -> None:
    options = {
        name: {option for each in found.params for option in each.opts} for name, found in commands_of(whole_program())
    }
    assert {name for name, has in options.items() if "--watch" in has} == LISTINGS
    assert all("--json" in options[name] for name in LISTINGS)


def test_only_what_has_changed_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    repeat(plays("a", "a", "raw", "raw", "a"), as_json=False)
    assert capfd.readouterr().out == "a\n\nraw\na\n"
    repeat(plays("{1}", "{1}", "{2}"), as_json=True)
    assert capfd.readouterr().out == "{1}\n{2}\n"


def test_a_failure_that_comes_later_is_told_and_may_be_over(capfd: pytest.CaptureFixture[str]) -> None:
    repeat(plays("a", ChappeError("nobody answers"), ChappeError("nobody answers"), "a", Exit(1)), as_json=False)
    out, err = capfd.readouterr()
    assert out == "a\n\na\n"
    assert err == "chappe: a line before\nchappe: nobody answers\nchappe: a line before\n"


@pytest.mark.parametrize("failure", [UsageError("no such directory"), Exit(1), ZeroDivisionError()])
def test_a_failure_of_the_first_run_ends_it(failure: Exception, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(type(failure)):
        repeat(plays(failure, "a"), as_json=False)
    assert capfd.readouterr().out == ""


def test_a_signal_ends_it_well() -> None:
    repeat(plays("a", Terminated()), as_json=False)


def test_in_a_terminal_it_is_one_picture_and_the_last_one_stays(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", terminal)
    seen: list[list[str]] = []
    command = plays("one\ntwo", ChappeError("nobody"), "three")

    def look() -> None:
        seen.append(list(terminal.shown))
        command()

    repeat(look, as_json=False)
    assert [rows[1:] for rows in seen] == [[], ["one", "two"], ["chappe: a line before", "chappe: nobody"], ["three"]]
    assert all(rows[0].endswith(", until Ctrl-C") for rows in seen[1:])
    assert terminal.shown == ["three"]


def test_a_group_of_commands_that_lists_leaves_the_others_alone() -> None:
    calls = []

    def listing(context: Context) -> None:
        calls.append(context.invoked_subcommand)

    context = Context(TyperCommand("groups"))
    context.invoked_subcommand = "show"
    watchable(listing)(context=context, watch=True)
    assert calls == ["show"]


def test_a_command_without_it_runs_once(capsys: pytest.CaptureFixture[str]) -> None:
    def listing(name: str, as_json: bool = False) -> None:
        print(name, as_json)

    watchable(listing)(name="n", as_json=True)
    assert capsys.readouterr().out == "n True\n"


def test_a_terminal_without_pictures_gets_what_has_changed(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    repeat(plays("a", "a", "b"), as_json=False)
    assert capfd.readouterr().out == "a\n\nb\n"
