"""What ``chappe --version`` says of chappe itself."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

import chappe
from chappe.cli import version


def test_it_says_which_parts_are_compiled_and_how_many_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chappe, "__file__", str(tmp_path / "__init__.py"))
    assert version.itself() == "Python alone"
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in ("data/json", "data/binary", "log/batch", "core"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.py").touch()
        (tmp_path / f"{name}{suffix}").touch()
    assert version.itself() == "4 modules compiled (core, data, log)"
