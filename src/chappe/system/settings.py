"""Settings that count for every program: where the tower is, what to listen on, which forwarders, who to be.

An argument comes first, then the environment, then the configuration file, then the default; the command line, the
library and Spark all go by this. The file is the first of: the one that ``CHAPPE_CONFIG`` names, ``chappe.toml`` in the
current directory, ``chappe.toml`` in the user's configuration directory. It is read when a member is made, and an error
in it is raised there.

A test that runs on a simulated machine (``chappe.testing``) sees neither environment nor file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT
from chappe.errors import ConfigError
from chappe.system import machine

FILE_NAME: Final = "chappe.toml"
CONFIG: Final = "CHAPPE_CONFIG"  # the variable that names the file
NONE: Final = "none"  # a value that overrides one further down with nothing
DEFAULT_TOWER: Final = f"{TOWER_HOST}:{TOWER_SUB_PORT}"
DEFAULT_LISTEN: Final = TOWER_HOST


def forwarders() -> str | None:
    """The forwarders that members use instead of a tower, or None.

    The first source that names a tower or forwarders decides between them; one that names both means the forwarders.

    Raises:
        ConfigError: The configuration file cannot be used.
    """
    found: str | None = None
    for each in _sources():
        found = found or each.get("forwarders")
        if found not in (None, NONE):
            return found
        if "tower" in each:
            return None
    return None


def tower(given: str | None = None) -> str:
    """The address of the tower: the argument that was given, or what the settings say. Raises ConfigError."""
    return given if given is not None else _first("tower") or DEFAULT_TOWER


def listen(given: str | None = None, default: str = DEFAULT_LISTEN) -> str:
    """The interface to listen on: the argument that was given, or what the settings say. Raises ConfigError."""
    return given if given is not None else _first("listen") or default


def identity() -> str | None:
    """The identity that environment or file names. Raises ConfigError if the file cannot be used."""
    found = _first("identity")
    return None if found == NONE else found


def _first(key: str) -> str | None:
    return next((each[key] for each in _sources() if key in each), None)


def _sources() -> tuple[Mapping[str, str], ...]:
    """What the environment says, and what the file says; empty values say nothing."""
    if machine.current() is not machine.SYSTEM:
        return ()
    names = ("tower", "listen", "forwarders", "identity")
    named = {name: os.environ.get(f"CHAPPE_{name.upper()}", "") for name in names}
    environment = {name: value for name, value in named.items() if value}
    path = find_file(os.environ.get(CONFIG))
    if path is None:
        return (environment,)
    found = path.stat()
    return environment, _said(path.resolve(), found.st_mtime_ns, found.st_size)


def find_file(explicit: str | None) -> Path | None:
    """The configuration file to use, or None.

    Raises:
        ConfigError: The one that was asked for is missing; or the one in the current directory may have been put there
            by anybody.
    """
    if explicit:
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {explicit}")
        return path
    here = Path(FILE_NAME)
    if here.is_file():
        _check_planted(here)
        return here
    users = _users_directory()
    return users / FILE_NAME if users is not None and (users / FILE_NAME).is_file() else None


def _users_directory() -> Path | None:
    """The user's configuration directory; None for a user who has none."""
    import platformdirs  # only when it is needed: it costs milliseconds of every start

    try:
        return platformdirs.user_config_path("chappe")
    except RuntimeError:  # neither HOME nor an entry for this user
        return None


def _check_planted(file: Path) -> None:
    """Raise ConfigError for a file of somebody else in a directory that everybody may write to, such as ``/tmp``.

    It could lead records to another tower. A directory that others cannot write to is its owner's responsibility.
    """
    if not hasattr(os, "geteuid"):
        return
    if file.stat().st_uid not in (0, os.geteuid()) and file.absolute().parent.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{file.absolute()} belongs to another user, in a directory that everybody may write to: work in another "
            f"directory, or name the file with {CONFIG} if it is to be used"
        )


@lru_cache(maxsize=8)
def _said(path: Path, _modified: int, _size: int) -> Mapping[str, str]:
    """The settings for everybody in a file, as of that moment."""
    from chappe.system.settings_file import Everything
    from chappe.system.toml import TomlFile

    source = TomlFile.read(path)
    said = source.convert(source.tables, Everything)
    named = {name: getattr(said, name) for name in ("tower", "listen", "forwarders", "identity")}
    return {name: value for name, value in named.items() if value}
