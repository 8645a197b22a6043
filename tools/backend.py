"""What ``pip`` builds chappe with: hatchling, and for a wheel that can be compiled here also what compiles it.

An editable installation stays pure and needs nothing more; so does a wheel with ``CHAPPE_PURE=1``, and one on a machine
without a C compiler. ``python -m hatchling build`` goes past this and takes the mypy that is there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.build import (
    build_editable,
    build_sdist,
    build_wheel,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
)
from hatchling.build import get_requires_for_build_wheel as _required

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.compile import REQUIRED, Cannot, check_compiler, is_pure

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
]  # fmt: skip


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """What must be installed before a wheel is built."""
    required = _required(config_settings)
    if is_pure():
        return required
    try:
        check_compiler()
    except Cannot:
        return required
    return [*required, *REQUIRED]
