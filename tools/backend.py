"""The build backend of chappe: hatchling, and for a wheel that can be compiled here also the compiler.

An editable installation stays pure and needs nothing more; so does a wheel with ``CHAPPE_PURE=1``, and one on a machine
without a C compiler. ``python -m hatchling build`` bypasses this module and uses the mypy that is installed.
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
from hatchling.builders.wheel import WheelBuilder

sys.path.insert(0, str(Path(__file__).parent.parent))

from tools.compile import REQUIRED, Cannot, check_compiler, is_pure

__all__ = [
    "build_editable", "build_sdist", "build_wheel", "get_requires_for_build_editable", "get_requires_for_build_sdist",
    "get_requires_for_build_wheel", "prepare_metadata_for_build_wheel",
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


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: dict[str, Any] | None = None) -> str:
    """Write the wheel's metadata without building it; returns the folder's name.

    Under pip, hatchling leaves this out, in case a hook changes the dependencies; ours changes none. Without it pip
    builds the wheel to read its metadata, and shows "Preparing metadata" for as long as that compiles.
    """
    builder = WheelBuilder(str(Path.cwd()))
    folder = Path(metadata_directory) / f"{builder.artifact_project_id}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(builder.config.core_metadata_constructor(builder.metadata), encoding="utf-8")
    return folder.name
