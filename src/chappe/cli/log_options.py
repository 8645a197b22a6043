"""The options of the log, which every command has: ``--verbose``, ``--log-file``, ``--log-level``, ``--log-format``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from typer import Context
from typer.core import TyperOption

from chappe.cli.config import Config
from chappe.cli.console import hear_warnings, warn
from chappe.cli.logs import log, parse_switch
from chappe.errors import ConfigError
from chappe.system.settings import NONE

PANEL: Final = "Log"


def _verbose(value: bool | str) -> None:
    log.ask(verbose=value if isinstance(value, bool) else parse_switch(value))


def _file(value: str) -> None:
    try:
        log.open(value, warn)
    except OSError as error:
        raise ConfigError(f"the log file {value} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"the log file {value} is not the name of a file") from error


def _level(value: str | tuple[str, ...]) -> None:
    log.ask(levels=value if isinstance(value, str) else ",".join(value))


def _format(value: str) -> None:
    log.ask(form=value)


def add_to(commands: Mapping[str, Any]) -> None:
    """Give the options to every command, also to those in groups."""
    for command in commands.values():
        if hasattr(command, "commands"):
            add_to(command.commands)
        else:
            command.params.extend(_options())


def _options() -> list[TyperOption]:
    return [
        _option("--verbose", _verbose, "Events on standard error.", is_flag=True),
        _option(
            "--log-file", _file, "Append events there, in more detail.",
            metavar="FILE",
        ),
        _option(
            "--log-level", _level, "Such as chappe.mesh=debug.",
            metavar="NAME=LEVEL", multiple=True,
        ),
        _option("--log-format", _format, "Text or json.", metavar="FORMAT"),
    ]  # fmt: skip


def _option(name: str, take: Callable[[Any], None], text: str, **more: Any) -> TyperOption:
    """Return an option that takes its value before the command runs, from the file if nothing else sets it."""
    short = name.removeprefix("--").removeprefix("log-")

    def heed(context: Context, _param: Any, value: Any) -> None:
        found = context.find_root().obj
        if context.resilient_parsing or not isinstance(found, Config):
            return  # completion, or a command that is only looked at
        if value is None or value == ():
            value = found.values.get(f"log.{short}")
        if value not in (None, NONE, (NONE,)):
            take(value)
            hear_warnings()

    return TyperOption(
        param_decls=[name], envvar=f"CHAPPE_LOG_{short.upper()}", callback=heed, expose_value=False, default=None,
        help=text, rich_help_panel=PANEL, **more,
    )  # fmt: skip
