"""Settings that apply to every program: tower, listening address, forwarders and identity.

The order of precedence is argument, environment, configuration file, default, for the command line, the
library and Spark alike. The file is the first of: the one that ``CHAPPE_CONFIG`` names, ``chappe.toml`` in the
current directory, ``chappe.toml`` in the user's configuration directory. It is read when a member is created, and
its errors are raised there.

On a simulated machine (``chappe.testing``) neither environment nor file applies.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Final

from chappe.defaults import SCHEMAS_PORT, TOWER_HOST, TOWER_SUB_PORT
from chappe.errors import ConfigError
from chappe.system import machine

FILE_NAME: Final = "chappe.toml"
CONFIG: Final = "CHAPPE_CONFIG"  # the variable that names the file
NONE: Final = "none"  # a value that clears one of lower precedence
DEFAULT_TOWER: Final = f"{TOWER_HOST}:{TOWER_SUB_PORT}"
DEFAULT_LISTEN: Final = TOWER_HOST
DEFAULT_SCHEMAS: Final = f"http://{TOWER_HOST}:{SCHEMAS_PORT}"
_NAMES: Final = ("tower", "listen", "forwarders", "identity", "schemas")


def forwarders() -> str | None:
    """Return the forwarders that members use instead of a tower, or None. The first source that names a tower or
    forwarders decides; if it names both, forwarders win. Raises ConfigError: the configuration file cannot be used.
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
    """Return the tower's address: ``given``, or from the settings. Raises ConfigError."""
    return given if given is not None else _first("tower") or DEFAULT_TOWER


def listen(given: str | None = None, default: str = DEFAULT_LISTEN) -> str:
    """Return the interface to listen on: ``given``, or from the settings. Raises ConfigError."""
    return given if given is not None else _first("listen") or default


def identity() -> str | None:
    """Return the identity from environment or file. Raises ConfigError if the file is unusable."""
    found = _first("identity")
    return None if found == NONE else found


def schemas() -> str:
    """Return the address of the server of schemas. Raises ConfigError."""
    return _first("schemas") or DEFAULT_SCHEMAS


def _first(key: str) -> str | None:
    return next((each[key] for each in _sources() if key in each), None)


def _sources() -> tuple[Mapping[str, str], ...]:
    if machine.current() is not machine.SYSTEM:
        return ()
    named = {name: os.environ.get(f"CHAPPE_{name.upper()}", "") for name in _NAMES}
    environment = {name: value for name, value in named.items() if value}
    path = find_file(os.environ.get(CONFIG))
    if path is None:
        return (environment,)
    found = path.stat()
    return environment, _said(path.resolve(), found.st_mtime_ns, found.st_size)


def find_file(explicit: str | None) -> Path | None:
    """Return the configuration file to use, or None. Raises ConfigError: the explicit file is missing, or the one in
    the current directory may have been planted by another user.
    """
    if explicit:
        path = Path(explicit).expanduser()
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {explicit}")
        return path
    here = Path(FILE_NAME)
    if here.is_file():
        check_planted(here, f"name the file with {CONFIG} if it is to be used")
        return here
    users = _users_directory()
    return users / FILE_NAME if users is not None and (users / FILE_NAME).is_file() else None


def _users_directory() -> Path | None:
    """Return the user's configuration directory; None for a user without one."""
    import platformdirs  # only when it is needed: it costs milliseconds of every start

    try:
        return platformdirs.user_config_path("chappe")
    except RuntimeError:  # neither HOME nor an entry for this user
        return None


def check_planted(file: Path, otherwise: str) -> None:
    """Raise ConfigError for another user's file in a world-writable directory, such as ``/tmp``.

    It could redirect records to another tower. Other directories are their owner's responsibility.
    """
    if not hasattr(os, "geteuid"):
        return
    if file.stat().st_uid not in (0, os.geteuid()) and file.absolute().parent.stat().st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{file.absolute()} belongs to another user, in a directory that everybody may write to: work in another "
            f"directory, or {otherwise}"
        )


@lru_cache(maxsize=8)
def _said(path: Path, _modified: int, _size: int) -> Mapping[str, str]:
    """Return the common settings of a file; modification time and size key the cache."""
    from chappe.system.toml import Everything, TomlFile

    source = TomlFile.read(path)
    said = source.convert(source.tables, Everything)
    named = {name: getattr(said, name) for name in _NAMES}
    return {name: value for name, value in named.items() if value}
