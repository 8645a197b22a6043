"""Counts calls: what a path costs, whatever the machine has else to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tests.sources import COMPILED, skip_compiled

import chappe

SOURCE = str(Path(chappe.__file__).parent)


def calls_inside_chappe(function: Callable[[], object]) -> int:
    """How many functions of chappe this thread enters while ``function`` runs."""
    if COMPILED:
        skip_compiled("calls between compiled functions cannot be counted")
    count = 0

    def note(frame: FrameType, event: str, arg: object) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(SOURCE)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return count
