"""The TOML file of ``chappe node``: its keys are the names of the command's options."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

import msgspec

from chappe.cli.config import Section, convert, read_tables, unknown
from chappe.cli.options import OnFull
from chappe.errors import ConfigError


class TlsSection(Section, frozen=True):
    """Certificates: their directory, seen from the file's own, and the name of ours."""

    directory: str
    name: str


class WebSocketSection(Section, frozen=True):
    """The WebSocket face; see ``chappe.web.server.WebSocketServer``."""

    listen: str | int
    origins: tuple[str, ...] = ()
    on_full: Literal["disconnect", "drop_oldest", "drop_newest"] = "disconnect"


class NodeFile(Section, frozen=True):
    """What a file says; everything may be left out."""

    id: str | None = None
    listen: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()
    forwarding: bool = True
    on_full: OnFull = "block"
    security: Literal["plain", "anonymous"] | None = None
    tls: TlsSection | None = None
    websocket: WebSocketSection | None = None


_SECTIONS: Final[dict[str, type[Section]]] = {"tls": TlsSection, "websocket": WebSocketSection}


def load(file: str) -> NodeFile:
    """Read a file; raises ConfigError, whose text names the line."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}")
    text, tables = read_tables(path)
    for key, value in tables.items():
        _check_known(path, text, (key,), value, NodeFile)
        if key in _SECTIONS and isinstance(value, dict):
            for inner, each in value.items():
                _check_known(path, text, (key, inner), each, _SECTIONS[key])
    found = convert(path, text, tables, NodeFile)
    if found.tls is None:
        return found
    directory = path.parent / Path(found.tls.directory).expanduser()
    return msgspec.structs.replace(found, tls=TlsSection(directory=str(directory), name=found.tls.name))


def _check_known(path: Path, text: str, keys: tuple[str, ...], value: object, kind: type[Section]) -> None:
    known = list(kind.__struct_fields__)
    if keys[-1] not in known:
        raise unknown(path, text, keys, value, known)
