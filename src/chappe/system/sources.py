"""Makes a compiled installation run its Python sources."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader


def is_pure() -> bool:
    """True if ``CHAPPE_PURE`` asks for pure Python: no compilation, and no import of compiled modules."""
    return os.environ.get("CHAPPE_PURE", "0") not in ("", "0")


def import_sources() -> None:
    """Import chappe's modules from their sources from now on, even beside compiled ones."""
    sys.meta_path.insert(0, _Sources)


class _Sources:
    """Finds sources of chappe's modules, which Python's own finder ranks behind compiled ones."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("chappe."):
            return None
        return next(filter(None, (_finder(each).find_spec(name) for each in path or ())), None)


@cache
def _finder(folder: str) -> FileFinder:
    return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
