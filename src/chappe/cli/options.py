"""Options that several commands share; each can also come from the environment or the configuration file."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

from typer import Context, Option

from chappe.data.topic import check_topic
from chappe.errors import UsageError
from chappe.security import IDENTITY, PASSPHRASE, Keys
from chappe.system.settings import DEFAULT_LISTEN, DEFAULT_TOWER, NONE

TOWER: Final = DEFAULT_TOWER
LISTEN: Final = DEFAULT_LISTEN
_CONTEXT: Final = "of_command"  # the parameter by which typer hands over where options come from
_SOURCES: Final = ("COMMANDLINE", "ENVIRONMENT", "DEFAULT_MAP", "DEFAULT")  # the first counts most

InputFormat = Literal["lines", "json", "length", "records"]
OutputFormat = Literal["text", "raw", "json", "length"]
OnFull = Literal["block", "drop_oldest", "drop_newest", "disconnect"]


Tower: TypeAlias = Annotated[
    str, Option(envvar="CHAPPE_TOWER", metavar="ADDRESS", help="The tower: HOST[:PORT[:SECOND-PORT]].")
]
Listen: TypeAlias = Annotated[str, Option(envvar="CHAPPE_LISTEN", metavar="HOST", help="Interface to listen on.")]
MaxAge: TypeAlias = Annotated[
    str | None,
    Option(metavar="AGE", help="Take no older records, such as 10s or 0.5s; unlimited by default."),
]
OnStale: TypeAlias = Annotated[
    Literal["end", "drop"],
    Option(help="With --max-age: fail at an older one, or drop it."),
]


def be(acting: str | None, plain: bool = False) -> None:
    """Set the identity of this process and its children (Spark's readers among them); none if ``plain``."""
    if plain:
        os.environ[IDENTITY] = NONE  # readers that are no members go by it; the file's identity does not count
    elif acting:
        os.environ[IDENTITY] = acting


def written_topic(topic: str) -> str:
    """Check the topic that a command writes to. Raises UsageError for an invalid one, or one that is not text.

    Other programs may write topics that are not text; on a command line it is a wrong locale or a mistake.
    """
    checked = check_topic(topic)
    need_text(checked)
    return checked


def need_text(topic: str) -> None:
    """Raise UsageError for a topic with bytes that are not text, which Spark and journals cannot carry."""
    if not topic.isascii() and any("\ud800" <= each <= "\udfff" for each in topic):
        raise UsageError(
            f"the topic {topic!a} is not text in UTF-8: give it from a terminal that writes UTF-8 (LC_ALL=C.UTF-8)"
        )


Acting: TypeAlias = Annotated[
    str | None,
    Option(
        "--as",
        envvar="CHAPPE_IDENTITY",
        metavar="DIRECTORY/NAME",
        help="The identity to be, as `chappe keys` made it.",
        rich_help_panel="Identity",
    ),
]
Plain: TypeAlias = Annotated[
    bool,
    Option(
        "--plain",
        help="No keys beyond this machine either: everybody who reaches it may read and forge.",
        rich_help_panel="Identity",
    ),
]
Chain: TypeAlias = Annotated[
    Path | None, Option("--chain", metavar="FILE", help="The configuration of a chain of stores, for ordered topics.")
]
Name: TypeAlias = Annotated[
    str | None,
    Option("--name", metavar="NAME", help="Its name in lists and pictures; by default the command and host."),
]
Json: TypeAlias = Annotated[bool, Option("--json", help="Print JSON for a machine.")]


@dataclass(frozen=True, slots=True)
class Reach:
    """Options by which a command reaches the log: through a tower, or at forwarders alone."""

    tower: Tower = TOWER
    listen: Listen = LISTEN
    forwarders: Annotated[
        str | None,
        Option(
            envvar="CHAPPE_FORWARDERS",
            metavar="ADDRESSES",
            help="Forwarders instead of a tower: HOST[:PORT], separated by commas.",
        ),
    ] = None
    acting: Acting = None
    plain: Plain = False

    def __post_init__(self) -> None:
        be(self.acting, self.plain)

    def heed(self, context: Context) -> Reach:
        """Drop the forwarders if a source of higher precedence names a tower."""
        tower, forwarders = (_SOURCES.index(source_of(context, each)) for each in ("tower", "forwarders"))
        return replace(self, forwarders=None) if tower < forwarders or self.forwarders == NONE else self

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the arguments of producers, consumers and ``discover``."""
        security = "plain" if self.plain else None
        return {
            "tower": self.tower, "listen": self.listen, "forwarders": self.forwarders or None, "security": security,
        }  # fmt: skip

    @property
    def named(self) -> str:
        return f"the forwarder at {self.forwarders}" if self.forwarders else f"the tower at {self.tower}"

    @property
    def command(self) -> str:
        return "chappe forward" if self.forwarders else "chappe store DIRECTORY"


def source_of(context: Context, name: str | None) -> str:
    """Return ``COMMANDLINE``, ``ENVIRONMENT``, ``DEFAULT_MAP`` (a file) or ``DEFAULT``."""
    source = None if name is None else context.get_parameter_source(name)
    return "DEFAULT" if source is None else source.name


def keys_of(acting: str | None) -> Keys | None:
    """Return the keys that ``--as`` names, with the passphrase of the environment."""
    return None if acting in (None, NONE) else Keys(acting, os.environ.get(PASSPHRASE))


def with_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Spell out the parameters of a command that are dataclasses: their fields become options.

    Typer knows no groups of options, so it sees a signature in which each group is spelled out. The help shows a
    group in the panel that its ``PANEL`` names, if it has one. A group's method ``heed``, if it has one, gets the
    context, which tells the source of each option, and returns the group to use.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    shown: dict[str, inspect.Parameter] = {}
    for parameter in inspect.signature(function).parameters.values():
        each = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)  # in any order, with a default or without
        group = groups.get(each.name)
        if group is None:
            shown[each.name] = each.replace(annotation=hints[each.name])
            continue
        kinds = get_type_hints(group, include_extras=True)
        for option in fields(group):
            for info in getattr(kinds[option.name], "__metadata__", ()):
                info.rich_help_panel = info.rich_help_panel or getattr(group, "PANEL", None)
            shown[option.name] = each.replace(name=option.name, default=option.default, annotation=kinds[option.name])

    heeding = [name for name, group in groups.items() if hasattr(group, "heed")]
    own = next((name for name, kind in hints.items() if kind is Context), None)  # typer hands over one context
    if heeding and own is None:
        shown[_CONTEXT] = inspect.Parameter(_CONTEXT, inspect.Parameter.KEYWORD_ONLY, annotation=Context)

    @wraps(function)
    def command(**given: Any) -> None:
        context = given.pop(_CONTEXT, None) if own is None else given[own]
        for name, group in groups.items():
            given[name] = group(**{each.name: given.pop(each.name) for each in fields(group) if each.name in given})
        for name in heeding if context is not None else ():
            given[name] = given[name].heed(context)
        function(**given)

    setattr(command, "__signature__", inspect.Signature(list(shown.values())))  # noqa: B010
    command.__annotations__ = {name: each.annotation for name, each in shown.items()}
    return command
