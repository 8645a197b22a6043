"""Which Python run.py takes: the one with the wheel of the sources in their present state, and else the sources."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import run


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an environment, a compiler, and nobody who compiles."""
    for name in ("src/chappe/log.py", "tools/compile.py", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    venv = tmp_path / ".venv"
    venv.mkdir()
    monkeypatch.setattr(run, "PROJECT", tmp_path)
    monkeypatch.setattr(run, "WHEELS", venv / "wheels")
    monkeypatch.setattr(run, "WHEEL_LOG", venv / "wheel.log")
    monkeypatch.setattr(run, "WHEEL_LOCK", venv / "wheel.lock")
    monkeypatch.setattr(run, "_has_compiler", lambda: True)
    return tmp_path


def _builder(monkeypatch: pytest.MonkeyPatch, problem: str = "", meanwhile: Path | None = None) -> None:
    """Instead of what builds a wheel and installs it: makes the directory, and may change a source meanwhile."""

    def fill(place: Path) -> str:
        place.mkdir()
        if meanwhile is not None:
            meanwhile.write_text("changed")
        return problem

    monkeypatch.setattr(run, "_fill", fill)


def test_the_first_run_starts_the_wheel_and_does_not_wait(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **others: started.append(command))
    assert run._choose_python() == run._choose_python() == run.PYTHON
    assert [each[-1] for each in started] == ["wheel"]  # once
    assert capsys.readouterr().err.count("in the background") == 1


def test_the_wheel_runs_until_the_sources_change(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _builder(monkeypatch)
    assert run._make_wheel() == ""
    place = run._place()
    assert run._choose_python() == place / "bin" / "python"

    (project / "src/chappe/log.py").write_text("x = 1")
    capsys.readouterr()
    assert run._choose_python() == run.PYTHON
    assert "the sources have changed" in capsys.readouterr().err

    for number in range(3):  # the last one may still be running, older ones go
        (project / "src/chappe/log.py").write_text(f"x = {number}")
        assert run._make_wheel() == ""
        assert len(list(run.WHEELS.iterdir())) == 2


def test_a_wheel_that_could_not_be_made_leaves_nothing_and_is_not_tried_again_in_the_background(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _builder(monkeypatch, problem="why")
    assert run._make_wheel() == "why"
    assert list(run.WHEELS.iterdir()) == []
    capsys.readouterr()
    assert run._choose_python() == run.PYTHON  # Popen is as it was: it would start run.py of this project
    assert capsys.readouterr().err == ""


def test_a_wheel_that_was_left_half_made_is_made_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _builder(monkeypatch)
    run.WHEELS.mkdir()
    (run.WHEELS / "killed").mkdir()
    assert run._choose_python() == run.PYTHON
    assert run._make_wheel() == ""
    assert list(run.WHEELS.iterdir()) == [run._place()]


def test_a_wheel_of_sources_that_changed_meanwhile_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _builder(monkeypatch, meanwhile=project / "src/chappe/log.py")
    assert "sources changed" in run._make_wheel()
    assert list(run.WHEELS.iterdir()) == []


def test_without_a_compiler_or_with_chappe_pure_the_sources_run(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_has_compiler", lambda: False)
    assert run._choose_python() == run.PYTHON
    assert not run.WHEELS.exists()


def test_a_test_run_is_of_the_wheel_and_of_the_sources_with_arguments(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []
    monkeypatch.setattr(run, "_set_up", lambda group: "")
    monkeypatch.setattr(run, "_become", became.append)
    monkeypatch.chdir(project)
    _builder(monkeypatch)
    run.main(["test"])
    run.main(["test", "-k", "some"])
    assert became == [
        [str(run._place() / "bin" / "python"), "-m", "pytest", *run.WORKERS],
        [str(run.PYTHON), "-m", "pytest", "-k", "some"],
    ]
