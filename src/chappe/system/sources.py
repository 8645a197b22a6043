"""Python alone, where a compiled installation is asked for it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, ModuleSpec, SourceFileLoader


def is_pure() -> bool:
    """Whether ``CHAPPE_PURE`` asks for Python alone: then nothing is compiled, and nothing compiled is imported."""
    return os.environ.get("CHAPPE_PURE", "0") not in ("", "0")


def import_sources() -> None:
    """Import the modules of chappe from their sources from now on, also where compiled ones lie beside them."""
    sys.meta_path.insert(0, _Sources)


class _Sources:
    """Finds the sources of modules of chappe, which Python's own finder looks for after the compiled ones."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith("chappe."):
            return None
        return next(filter(None, (_finder(each).find_spec(name) for each in path or ())), None)


@cache
def _finder(folder: str) -> FileFinder:
    return FileFinder(folder, (SourceFileLoader, SOURCE_SUFFIXES))
