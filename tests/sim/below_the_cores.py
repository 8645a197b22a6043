"""Faults that can be planted below the cores of any member."""

from __future__ import annotations

import math

import pytest

from chappe.runtime.turns import Turns


def forgets_who_is_due(patch: pytest.MonkeyPatch) -> None:
    """What was due while something else was handled is forgotten."""
    look = Turns.look

    def forgets(turns: Turns) -> tuple[bool, float]:
        return look(turns)[0], math.inf

    patch.setattr(Turns, "look", forgets)
