"""How values are typed and printed on the command line: JSON first, Broker's text form on request.

What is typed is read by the first rule that fits:

1. What is JSON is that value (``chappe.data.json.loads_plain``): ``5``, ``-1.5``, ``true``, ``null``, ``"text"``,
   ``[1, 2]``, ``{"a": 1}``, and the typed JSON of Broker, ``{"@data-type": "count", "data": 5}``.
2. ``TYPE:TEXT`` is a value of that type: ``count:5``, ``address:10.0.0.1``, ``timespan:5m``, ``string:42``.
3. Anything else is a string as it stands. Text that begins like JSON but is not JSON is an error.

What is printed is read back as the same value. With ``--text`` both are in Broker's text form instead, which guesses.
"""

from __future__ import annotations

import json
import math
import re
from typing import Annotated, Any, Final, TypeAlias

import typer
from typer.core import TyperCommand

from chappe.data.json import dumps_plain, loads, loads_plain, scalar_text
from chappe.data.order import TYPE_NAMES
from chappe.data.text import from_text, to_text
from chappe.data.values import TAGS, Set, Table, Value, type_name
from chappe.errors import InvalidData, UsageError

HELP: Final = "JSON, TYPE:TEXT such as count:5, or else a string."

Text: TypeAlias = Annotated[
    bool, typer.Option("--text", help="Values are typed and printed in Broker's text form: 5m, 10.0.0.0/8, {1, 2}, T.")
]

# What would move the cursor or end the line early: control characters, but not the tab.
CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if code != 9} | {10: "\\n"}
_SPACE: Final = " \t\r\n"  # JSON's
_SCALAR: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null", re.ASCII)
_TIME: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:.]+(?:Z|[+-][0-9:]+)?", re.ASCII)
_PLAIN: Final = (type(None), bool, int, str, bytes, tuple, Set, Table)  # JSON has a form for them
_NEGATIVE: Final = re.compile(r"-\.?[0-9]")
_WORDS: Final = {
    "true": "true",
    "false": "false",
    "t": "true",
    "f": "false",
    "nil": "null",
    "none": "null",
    "null": "null",
}


class Command(TyperCommand):
    """A command that takes values: what begins as a negative number is one, and no option."""

    def make_parser(self, ctx: Any) -> Any:
        """The parser of its arguments; the option parser itself would look for an option of that name."""
        parser = super().make_parser(ctx)
        process = parser._process_opts

        def process_opts(argument: str, state: Any) -> None:
            if _NEGATIVE.match(argument):
                state.largs.append(argument)
            else:
                process(argument, state)

        # click has no other place for it: its ignore_unknown_options would take misspelt options for values, too
        setattr(parser, "_process_opts", process_opts)  # noqa: B010
        return parser


# -- reading --------------------------------------------------------------------------------------


def read(text: str, kind: str | None = None, *, as_text: bool = False) -> Value:
    """The value that ``text`` is, by the rules above; of type ``kind`` if that is given.

    Raises InvalidData.
    """
    if kind is not None:
        return _of_type(kind, text)
    named, colon, rest = text.partition(":")
    if as_text:
        return _of_type(named, rest) if colon and named in TYPE_NAMES else from_text(text)
    inner = text.strip(_SPACE)
    if inner[:1] in ("{", "[", '"') or _SCALAR.fullmatch(inner):
        return _json(text)
    return _of_type(named, rest) if colon and named in TYPE_NAMES else from_text(text, "string")


def read_argument(text: str, kind: str | None = None, *, as_text: bool = False) -> Value:
    """The same of an argument of the command: raises UsageError, and says if a string may have been meant otherwise."""
    from chappe.cli.console import warn

    try:
        found = read(text, kind, as_text=as_text)
    except InvalidData as problem:
        raise UsageError(str(problem)) from None
    other = None if kind is not None or as_text else hint(text)
    if other is not None:
        warn(other)
    return found


def hint(text: str) -> str | None:
    """What to say of a text that was taken as a string, and looks like something that it is not; None: nothing."""
    named, colon, _ = text.partition(":")
    inner = text.strip(_SPACE)
    if (colon and named in TYPE_NAMES) or inner[:1] in ("{", "[", '"') or _SCALAR.fullmatch(inner):
        return None
    meant = _meant(text)
    if meant is None:
        return None
    return f"{text!r} is taken as a string, not as {meant}; string:{text} is one without this line"


def _meant(text: str) -> str | None:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _TIME.fullmatch(text):
        return f"a time (timestamp:{text.replace(' ', 'T')})"
    try:
        guessed = from_text(text)
    except InvalidData:
        return None
    kind = type_name(guessed)
    if kind == "string":
        return None
    if type(guessed) is tuple:
        return "a vector ([1, 2])"
    return f"{'an' if kind[0] in 'aei' else 'a'} {kind} ({kind}:{text})"


def _json(text: str) -> Value:
    try:
        return loads_plain(text)
    except InvalidData as problem:
        shown = text if len(text) <= 60 else text[:60] + "..."
        raise InvalidData(
            f"{shown!r} is not the JSON that it looks like: {problem}. For a string write string:TEXT, "
            "for Broker's text form give --text"
        ) from None


def _of_type(kind: str, text: str) -> Value:
    if kind == "timestamp" and not text.endswith("ns"):
        return loads(json.dumps({"@data-type": kind, "data": text}))
    try:
        return from_text(text, kind)
    except InvalidData as problem:
        raise InvalidData(f"{problem}; for a string write string:TEXT") from None


# -- printing -------------------------------------------------------------------------------------


def shown(value: object, *, as_text: bool = False) -> str:
    """A value on one line, as ``read`` reads it; with ``as_text`` as Broker's text form, which loses types."""
    if as_text:
        return to_text(value).translate(CONTROLS)
    if type(value) is str:
        return value if _is_bare(value) else dumps_plain(value)
    return _typed(value) or dumps_plain(value)


def _is_bare(text: str) -> bool:
    """Whether a string is typed as it stands, and nobody takes it for anything else."""
    if not text.isprintable() or not text or text[0] == "-" or text != text.strip():
        return False
    try:
        return hint(text) is None and read(text) == text
    except InvalidData:
        return False


def _typed(value: Any) -> str | None:
    """``TYPE:TEXT`` of a scalar that JSON has no type for."""
    kind = type(value)
    if TAGS.get(kind) is None or kind in _PLAIN or (kind is float and math.isfinite(value)):
        return None
    text = str(value) if kind is float else scalar_text(value)
    return f"{type_name(value)}:{text}" if text.isprintable() else None
