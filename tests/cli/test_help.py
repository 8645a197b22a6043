"""``--help`` of every command: a verb first, and no more than a screen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from tests.cli.conftest import Shell
from tests.commands import whole_program
from typer import Context

COLUMNS = 100
LINES = 50
VERBS = (
    "Add Answer Ask Benchmark Check Copy Decide Delete Extend Forget Give Join Keep Let List Make Measure Print "
    "Publish Read Remove Replay Revoke Run Say Seal Serve Set Show Sign Start Tell Write"
)


@cache
def contexts() -> dict[str, Any]:
    """A context for each command and group, by its name."""

    def below(above: Any) -> Iterator[tuple[str, Any]]:
        yield above.command_path, above
        for name, command in getattr(above.command, "commands", {}).items():
            yield from below(Context(command, parent=above, info_name=name))

    program = whole_program()
    return dict(below(Context(program, info_name="chappe", **program.context_settings)))


def shown(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: int) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(columns))
    print(contexts()[name].get_help(), end="")
    return capsys.readouterr().out.rstrip("\n").split("\n")


@pytest.mark.parametrize("name", list(contexts()))
def test_help_fits_a_screen(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    usage, first, *rest = shown(name, capsys, monkeypatch, COLUMNS)

    assert usage.startswith(f"Usage: {name} ")
    assert first.split()[0].rstrip(",") in VERBS.split() or name == "chappe"
    assert len(rest) + 4 <= LINES  # with the two above, an empty line and the prompt
    assert max(map(len, rest)) <= COLUMNS
    assert not any("env var" in each for each in rest)
    assert len(shown(name, capsys, monkeypatch, 80)) < 1.5 * LINES


@pytest.mark.parametrize("name", list(contexts()))
def test_help_names_every_option(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in paragraphs: they wrap between options, and in no name."""
    words = " ".join(shown(name, capsys, monkeypatch, COLUMNS)).replace(", ", " ").split()

    for param in contexts()[name].command.params:
        named = [] if param.hidden or param.param_type_name == "argument" else [*param.opts, *param.secondary_opts]
        assert set(named) <= set(words)


@pytest.mark.parametrize("name", list(contexts()))
def test_options_of_many_commands_have_lines_of_their_own(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = shown(name, capsys, monkeypatch, COLUMNS)

    for option, title in (("--as ", "Identity: "), ("--metrics ", "Numbers: "), ("--verbose ", "Log: ")):
        assert all(each.startswith(title + option) for each in lines if each.lstrip().startswith((option, title)))
    assert sum(each.startswith("Log: ") for each in lines) == (not hasattr(contexts()[name].command, "commands"))


def test_colours_are_those_of_headings_and_names(monkeypatch: pytest.MonkeyPatch) -> None:
    from chappe.cli.help_layout import _coloured

    text = "Log:\n  --to TOPIC  Where: there.\n              Or: here.\n"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert _coloured(text) == (
        "\x1b[1mLog\x1b[0m:\n\x1b[36m  --to TOPIC\x1b[0m  Where: there.\n              Or: here.\n"
    )
    monkeypatch.setenv("NO_COLOR", "1")
    assert _coloured(text) == text


@pytest.mark.process
def test_options_meant_are_not_guessed_from_a_few_letters(shell: Shell) -> None:
    for wrong, meant in (("--timeout", b""), ("--follo", b"(Possible options: --follow)")):
        done = shell.run("copy", "t", wrong)
        assert (done.returncode, done.stdout) == (2, b"")
        assert f"No such option: {wrong}".encode() + (b" " + meant if meant else b"  ") in done.stderr
