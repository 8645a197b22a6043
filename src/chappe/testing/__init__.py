"""For tests of programs that use chappe: everything in one process, on a clock that takes no time.

``World`` is where a test lives, ``Log`` a tower and a store in it. pytest has both as the fixtures ``chappe_world`` and
``chappe_log`` as soon as chappe is installed. ``check_machine`` says whether a chain can replicate a machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chappe.testing.machines import check_machine
    from chappe.testing.scheduler import NothingHappens
    from chappe.testing.world import Log, World

__all__ = ["Log", "NothingHappens", "World", "check_machine"]
_HOMES = {"Log": "world", "NothingHappens": "scheduler", "World": "world", "check_machine": "machines"}


def __getattr__(name: str) -> object:
    """Import it when it is first used: pytest loads this package in every run."""
    if name not in __all__:
        raise AttributeError(f"module 'chappe.testing' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"chappe.testing.{_HOMES[name]}"), name)
