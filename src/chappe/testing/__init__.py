"""For tests of programs that use chappe: everything in one process, on a clock that takes no time.

``World`` is where a test lives, ``Log`` a tower and a store in it. pytest has both as the fixtures ``chappe_world`` and
``chappe_log`` as soon as chappe is installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chappe.testing.log import Log
    from chappe.testing.scheduler import NothingHappens
    from chappe.testing.world import World

_HOMES = {
    "Log": "chappe.testing.log",
    "NothingHappens": "chappe.testing.scheduler",
    "World": "chappe.testing.world",
}

__all__ = ["Log", "NothingHappens", "World"]


def __getattr__(name: str) -> object:
    """Import it when it is first used: pytest loads this package in every run."""
    from importlib import import_module

    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'chappe.testing' has no attribute {name!r}")
