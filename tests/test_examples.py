"""The examples that need nothing but themselves run, and print what they are about."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Final

import pytest

EXAMPLES: Final = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize(("name", "words"), [("mesh", "'bytes', 9000"), ("state", "('hosts seen', 2)")])
def test_an_example_runs(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert words in capsys.readouterr().out
