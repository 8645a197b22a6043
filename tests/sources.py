"""Tests that only the sources can pass: those that look into, or replace, something in a compiled module."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

from chappe.data import binary

COMPILED: Final = not binary.__file__.endswith(".py")


def skip_compiled(reason: str) -> None:
    """Skip the running test. Its name is added to the file that CHAPPE_SKIPPED names, to be run from the sources."""
    if file := os.environ.get("CHAPPE_SKIPPED"):
        with Path(file).open("a", encoding="utf-8") as skipped:
            skipped.write(os.environ["PYTEST_CURRENT_TEST"].rpartition(" (")[0] + "\n")
    pytest.skip(reason)


def needs_sources() -> None:
    """Skip a test that plants a fault in a core: a compiled one takes neither subclasses nor new methods."""
    if COMPILED:
        skip_compiled("a fault cannot be planted in a compiled core")
