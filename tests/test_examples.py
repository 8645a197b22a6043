"""The examples that need nothing but themselves run, and print what they are about."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.waiting import PATIENCE_S

EXAMPLES: Final = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(("name", "words"), [("mesh", "'bytes', 9000"), ("state", "('hosts seen', 2)")])
def test_an_example_runs(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert words in capsys.readouterr().out


@pytest.mark.spark
@pytest.mark.process
@pytest.mark.usefixtures("quick_java")
def test_what_sensors_tell_is_asked_with_spark() -> None:
    """In a process of its own: the example ends its session."""
    pytest.importorskip("pyspark")
    command = [sys.executable, str(EXAMPLES / "sensors.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    assert "100 events are stored" in done.stdout
    assert "10.0.0.3, port 443: 25 connections, 1,275,000 bytes" in done.stdout
