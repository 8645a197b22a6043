"""The machine that a configuration names, and a server for it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from chappe.api.chain.configuration import ChainConfiguration
from chappe.api.chain.key_values import KeyValues
from chappe.api.chain.server import ChainServer
from chappe.errors import ConfigError
from chappe.security import LogSecurity


def start_configured(
    configuration: ChainConfiguration, name: str, directory: Path | None, security: LogSecurity = None
) -> ChainServer:
    """Start the server ``name`` of the machine that a configuration names, keys and values by default.

    Raises:
        ConfigError: There is no such machine.
    """
    word = configuration.machine or "map"
    if ":" in word:
        machine = _made(word)
    elif word == "map":
        machine = KeyValues()
    else:
        raise ConfigError(f"machine {word!a} is not known: map, or MODULE:CLASS of your own")
    return ChainServer(machine, configuration, name, directory=directory, security=security)


def _made(word: str) -> Any:
    module, _, attribute = word.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")  # as python -m finds what is in the current directory
    try:
        make = getattr(import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(f"machine {word!a} is not found: there is no module {error.name}") from None
    except AttributeError:
        raise ConfigError(f"machine {word!a} is not found: the module {module} has no {attribute}") from None
    machine = make()
    missing = [each for each in ("apply", "read", "snapshot", "restore") if not callable(getattr(machine, each, None))]
    if missing:
        raise ConfigError(f"machine {word!a} cannot be replicated: it lacks {', '.join(missing)}")
    return machine
