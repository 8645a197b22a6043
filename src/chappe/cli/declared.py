"""Settings of the mesh, each declared once: its key in a file, its variable, its option, its default and its meaning.

``chappe.toml`` has them in sections, ``[mesh]``, ``[node]`` and ``[subscribe]``. The file of ``chappe node`` has the
keys of ``[mesh]`` without a section. Values of every source pass the same check, and an error names the source.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, get_args

import msgspec
from typer import CallbackParam, Context, Option

from chappe.cli.options import OnFull, source_of
from chappe.cli.units import address, exact_bytes, parse_age, parse_bytes, place
from chappe.defaults import (
    HEARTBEAT_S,
    MESH_PORT,
    PEER_BYTES_MAX,
    PEER_MESSAGES_MAX,
    SUBSCRIBER_BYTES_MAX,
    SUBSCRIBER_MESSAGES_MAX,
)
from chappe.errors import UsageError
from chappe.system.settings import NONE
from chappe.system.toml import TomlFile, TomlSection

HERE: Final = f"127.0.0.1:{MESH_PORT}"
RETRY_S: Final = 1.0  # between attempts to reach a peer
FILE: Final = "chappe.file"  # in a context's ``meta``: the file of a command, and the keys that it sets
OnStale = Literal["end", "drop"]
_S = TypeVar("_S", bound=TomlSection)


def seconds(value: object) -> float:
    """Parse a number of seconds above 0. Raises UsageError."""
    try:
        found = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        found = math.nan
    if not 0 < found < math.inf:
        raise UsageError(f"{_short(value)} is not a number of seconds above 0")
    return found


def _whole(least: int, most: int | None = None) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = str(value)
        found = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else -1
        if found < least or (most is not None and found > most):
            bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
            raise UsageError(f"{_short(value)} is not a whole number {bounds}")
        return found

    return read


def _size(value: Any) -> int:
    found = parse_bytes(value)
    if found < 1:
        raise UsageError("a bound of bytes is at least 1")
    return found


def _one_of(choices: tuple[str, ...]) -> Callable[[object], str]:
    def read(value: object) -> str:
        if value not in choices:
            raise UsageError(f"{_short(value)} is none of {', '.join(choices)}")
        return str(value)

    return read


def _address(value: object) -> str:
    address(str(value))
    return str(value)


def _port(value: object) -> str:
    place(str(value))
    return str(value)


def _path(value: object) -> str:
    if not value or "\0" in str(value):
        raise UsageError(f"{_short(value)} is not a path")
    return str(value)


def _age(value: object) -> str:
    parse_age(str(value))
    return str(value)


def _short(value: object) -> str:
    return f"{value!r:.100}"


def as_is(value: Any) -> Any:
    """Leave a value to the callback, which knows its source."""
    return value


@dataclass(frozen=True, slots=True)
class Declared:
    """A setting.

    ``kind`` is the type that the file has; ``read`` checks a value of any source and raises UsageError; ``default`` is
    a value. A setting with ``several`` is a list: an array in the file, an option that may be repeated, and values
    separated by commas in the variable, of which ``none`` is an empty list. ``none`` on the command line or in the
    environment clears another one without default.
    """

    key: str
    kind: Any
    read: Callable[[Any], Any]
    default: Any
    help: str
    metavar: str = "N"
    several: bool = False
    shown: str = field(default="")  # the default for people, if it is not its text

    @property
    def section(self) -> str:
        return self.key.partition(".")[0]

    @property
    def name(self) -> str:
        return self.key.partition(".")[2]

    @property
    def variable(self) -> str:
        return "CHAPPE_" + self.key.upper().replace(".", "_")

    @property
    def default_text(self) -> str:
        return self.shown or text_of(self.default)

    def option(self, *names: str, help: str | None = None, panel: str | None = None) -> Any:
        """Return the option of a command, which the variable can set, too."""
        more: dict[str, Any] = {"help": help or f"{self.help[0].upper()}{self.help[1:]}."}
        if self.kind is not bool:
            more |= {"parser": as_is, "callback": self._heed, "metavar": self.metavar}
        if self.shown and not self.several:
            more["show_default"] = self.shown
        return Option(*names, envvar=self.variable, rich_help_panel=panel, **more)

    def take(self, value: Any) -> Any:
        return [self.read(each) for each in value] if self.several else self.read(value)

    def take_first(self, context: Context, param: CallbackParam, value: Any) -> Any:
        """Take the first of several values from the environment or a file, for a command that takes one."""
        if value is None or source_of(context, param.name) == "COMMANDLINE":
            return value
        found = self._heed(context, param, [value] if isinstance(value, str) else value)
        return found[0] if found else self.shown

    def _heed(self, context: Context, param: CallbackParam, value: Any) -> Any:
        """Check the value of an option; the error names the option or the variable."""
        if value is None or context.resilient_parsing:
            return value
        source = source_of(context, param.name)
        if source not in ("COMMANDLINE", "ENVIRONMENT"):
            return value  # the default, or checked with the file
        try:
            if not self.several:
                return None if value == NONE and self.default is None else self.read(value)
            if source == "ENVIRONMENT":
                value = [each.strip() for text in value for each in text.split(",") if each.strip()]
                value = [] if value == [NONE] else value
            return self.take(value)
        except UsageError as error:
            raise UsageError(f"{self.variable if source == 'ENVIRONMENT' else param.opts[0]}: {error}") from None


def text_of(value: object) -> str:
    """Return a setting's value in the form that the file and the environment take."""
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or NONE
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return NONE if value is None else str(value)


def _list(key: str, read: Callable[[object], str], help: str, metavar: str, shown: str = NONE) -> Declared:
    return Declared(key, tuple[str, ...], read, None, help, metavar, several=True, shown=shown)


_ADDRESSES: Final = "HOST[:PORT]"
_POLICIES: Final = get_args(OnFull)
_STALE: Final = get_args(OnStale)
_SUBSCRIBER_POLICIES: Final = tuple(each for each in _POLICIES if each != "disconnect")

DECLARED: Final = {
    each.key: each
    for each in (
        _list(
            "mesh.listen", _address, f"where `node` and `kv serve` listen: {_ADDRESSES}; port 0: any", _ADDRESSES, HERE
        ),
        _list(
            "mesh.peers", _address, f"endpoints to dial: {_ADDRESSES}; none by default for those that listen",
            _ADDRESSES, HERE,
        ),
        Declared("mesh.retry_s", float, seconds, RETRY_S, "how long to wait before a peer is dialled again", "SECONDS"),
        Declared(
            "mesh.retry_max_s", float, seconds, None,
            "up to how long these waits double, less a random part; none: fixed", "SECONDS",
        ),
        Declared(
            "mesh.attempts", int, _whole(1), None, "after how many failures in a row a peer is no longer dialled"
        ),
        Declared("mesh.forwarding", bool, bool, True, "whether to pass on what peers publish"),
        _list("mesh.forward", str, "prefixes that originals are to send to `node`, to be passed on", "TOPIC"),
        Declared(
            "mesh.paths", int, _whole(1, 2), 1, "in how many ways messages go to each receiver: 1 or 2"
        ),
        Declared(
            "mesh.on_full", OnFull, _one_of(_POLICIES), "block",
            f"what happens when a peer is slow: {', '.join(_POLICIES)}", "POLICY",
        ),
        Declared(
            "mesh.peer_messages_max", int, _whole(1), PEER_MESSAGES_MAX, "how many messages may wait for each peer"
        ),
        Declared(
            "mesh.peer_bytes_max", str | int, _size, PEER_BYTES_MAX, "how many bytes may wait for each peer", "SIZE",
            shown=exact_bytes(PEER_BYTES_MAX),
        ),
        Declared(
            "mesh.heartbeat_s", float, seconds, HEARTBEAT_S,
            "how often a heartbeat is sent; a peer silent three times as long is lost", "SECONDS",
        ),
        Declared(
            "mesh.last_values", int, _whole(0), 0, "of how many topics `node` keeps the newest message for `--last`"
        ),
        Declared(
            "mesh.recording_directory", str, _path, None,
            "the folder into which `node` records the shapes of what is published here, for `chappe mesh generate`",
            "DIRECTORY",
        ),
        Declared(
            "mesh.output_generator_file_cap", int, _whole(1), None, "how many messages `node` records at most"
        ),
        Declared(
            "node.websocket", str | int, _port, None, "where `node` serves WebSocket clients: [HOST:]PORT",
            "[HOST:]PORT",
        ),
        _list("node.origins", str, "web pages that may connect there, beside those of this machine", "ORIGIN"),
        Declared(
            "node.tap", str | int, _port, None, "where `chappe tap` sees what passes `node`: [HOST:]PORT", "[HOST:]PORT"
        ),
        Declared(
            "subscribe.on_full", OnFull, _one_of(_SUBSCRIBER_POLICIES), "drop_oldest",
            f"what `subscribe` does when its output is slow: {', '.join(_SUBSCRIBER_POLICIES)}", "POLICY",
        ),
        Declared(
            "subscribe.messages_max", int, _whole(1), SUBSCRIBER_MESSAGES_MAX, "how many messages may wait for output"
        ),
        Declared(
            "subscribe.bytes_max", str | int, _size, SUBSCRIBER_BYTES_MAX, "how many bytes may wait for output", "SIZE",
            shown=exact_bytes(SUBSCRIBER_BYTES_MAX),
        ),
        Declared("subscribe.max_age", str, _age, None, "how old what `subscribe` takes may be: 10s, 0.5s", "AGE"),
        Declared(
            "subscribe.on_stale", OnStale, _one_of(_STALE), "end",
            f"what `subscribe` does with what is older: {', '.join(_STALE)}", "WORD",
        ),
    )
}  # fmt: skip
SECTIONS: Final = tuple(dict.fromkeys(each.section for each in DECLARED.values()))


def of(key: str) -> Declared:
    return DECLARED[key]


def schema(section: str, base: type[_S]) -> type[_S]:
    """Extend ``base`` by the settings of ``section``."""
    fields = [(each.name, each.kind | None, None) for each in DECLARED.values() if each.section == section]
    kind: Any = msgspec.defstruct(f"_{section}", fields, bases=(base,), frozen=True, kw_only=True, omit_defaults=True)
    return kind  # type: ignore[no-any-return]


def taken(source: TomlFile, found: TomlSection, section: str, above: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings that a section of a file sets, by name. Raises ConfigError, which names the line."""
    given = {each: getattr(found, each.name) for each in DECLARED.values() if each.section == section}
    return {
        each.name: source.parsed((*above, each.name), each.take, value)
        for each, value in given.items()
        if value is not None
    }


def origin(context: Context, key: str) -> str:
    """Name the source of a setting's value in a sentence."""
    found = of(key)
    match source_of(context, found.name):
        case "COMMANDLINE":
            return "--" + found.name.replace("_", "-")
        case "ENVIRONMENT":
            return found.variable
        case "DEFAULT_MAP":
            file, keys = context.meta.get(FILE, (None, ()))
            return f"{found.name} in {file}" if found.name in keys else f"{key} in {context.find_root().obj.path}"
    return f"the default of {key}"
