"""What run.py runs: what was compiled of the sources as they are, and else the sources."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an environment, a compiler, and nobody who compiles."""
    for name in ("src/chappe/log.py", "tools/compile.py"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("")
    venv = tmp_path / ".venv"
    venv.mkdir()
    monkeypatch.setattr(run, "PROJECT", tmp_path)
    monkeypatch.setattr(run, "COMPILED", venv / "compiled")
    monkeypatch.setattr(run, "COMPILE_LOG", venv / "compile.log")
    monkeypatch.setattr(run, "COMPILE_LOCK", venv / "compile.lock")
    monkeypatch.setattr(run, "_has_compiler", lambda: True)
    monkeypatch.setenv("PYTHONPATH", "mine")
    return tmp_path


def _compiler(monkeypatch: pytest.MonkeyPatch, code: int = 0, meanwhile: Path | None = None) -> None:
    """Has run.py call something that makes the directory it is given, as tools.compile does."""

    def call(command: list[str], **others: Any) -> int:
        if meanwhile is not None:
            meanwhile.write_text("changed")
        if not code:
            Path(command[-1]).mkdir()
        return code

    monkeypatch.setattr(subprocess, "call", call)


def test_the_first_run_starts_compiling_and_does_not_wait(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **others: started.append(command))
    run._use_compiled()
    run._use_compiled()
    assert [each[-1] for each in started] == ["compile"]  # once
    assert os.environ["PYTHONPATH"] == "mine"
    assert capsys.readouterr().err.count("in the background") == 1


def test_what_was_compiled_runs_until_the_sources_change(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _compiler(monkeypatch)
    assert run._compile() == 0
    place = run._place()
    run._use_compiled()
    assert os.environ["PYTHONPATH"] == f"{place}{os.pathsep}mine"

    monkeypatch.setenv("PYTHONPATH", "mine")
    (project / "src/chappe/log.py").write_text("x = 1")
    capsys.readouterr()
    run._use_compiled()
    assert os.environ["PYTHONPATH"] == "mine"
    assert "the sources have changed" in capsys.readouterr().err

    for number in range(3):  # what may still be run stays, older ones go
        (project / "src/chappe/log.py").write_text(f"x = {number}")
        assert run._compile() == 0
        assert len(list(run.COMPILED.iterdir())) == 2


def test_what_could_not_be_compiled_leaves_nothing_and_is_not_tried_again_by_itself(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _compiler(monkeypatch, code=3)
    assert run._compile() == 3
    assert list(run.COMPILED.iterdir()) == []
    run._use_compiled()  # Popen is as it was: it would start run.py of this project, which is not there
    assert os.environ["PYTHONPATH"] == "mine"
    assert capsys.readouterr().err == ""


def test_sources_that_change_while_they_are_compiled_are_not_taken_for_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _compiler(monkeypatch, meanwhile=project / "src/chappe/log.py")
    assert run._compile() == 1
    assert list(run.COMPILED.iterdir()) == []


def test_only_one_compiles_at_a_time(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with run.COMPILE_LOCK.open("w") as lock:
        assert run._take(lock)
        assert run._compile() == 1
    assert "another run compiles already" in capsys.readouterr().err
