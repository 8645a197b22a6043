"""Compiled where a compiler is, pure elsewhere: what is chosen, what is said, and that a wheel comes out either way."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tools import backend, compile

ROOT: Final = Path(__file__).parent.parent.parent


def test_no_module_is_in_two_parts_or_compiled_where_it_cannot_be() -> None:
    parts = compile.parts([*compile.PARTS])
    files = [each for part in parts.values() for each in part]
    assert sorted(files) == sorted(set(files))
    assert all((ROOT / "src" / each).is_file() for each in files)
    assert not {f"chappe/{each}" for each in compile.LEFT_ALONE} & set(files)
    assert all((ROOT / "src" / "chappe" / each).is_file() for each in compile.LEFT_ALONE)
    assert set(parts) == set(compile.PARTS)


def test_nothing_that_stays_interpreted_inherits_from_what_is_compiled() -> None:
    files = {each for part in compile.parts([*compile.PARTS]).values() for each in part}
    modules = {each.removesuffix(".py").replace("/", ".") for each in files}
    source = ROOT / "src"
    wrong = []
    for path in source.rglob("*.py"):
        if str(path.relative_to(source)) in files:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imports = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module in modules]
        names = {name.asname or name.name for each in imports for name in each.names}
        bases = [base for each in ast.walk(tree) if isinstance(each, ast.ClassDef) for base in each.bases]
        wrong += [f"{path.name}: {base.id}" for base in bases if isinstance(base, ast.Name) and base.id in names]
    assert wrong == []


def test_structs_that_are_compiled_have_what_their_keywords_say_from_their_base() -> None:
    wrong = []
    for path in {ROOT / "src" / each for part in compile.parts([*compile.PARTS]).values() for each in part}:
        for each in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(each, ast.ClassDef) and each.keywords:
                wrong += [f"{path.name}: {each.name}" for base in each.bases if ast.unparse(base) == "msgspec.Struct"]
    assert wrong == []


def test_who_wants_python_alone_gets_it_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CHAPPE_PURE", "1")
    assert compile.main([str(tmp_path / "new")]) == compile.CANNOT
    assert capfd.readouterr().err == "compile: CHAPPE_PURE is set, so nothing is compiled\n"
    assert not (tmp_path / "new").exists()
    assert backend.get_requires_for_build_wheel() == []


def test_without_a_compiler_there_is_one_line_and_nothing_more_to_fetch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHAPPE_PURE", raising=False)
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: "/nowhere/cc -pthread")
    assert compile.main([str(tmp_path / "new")]) == compile.CANNOT
    assert capfd.readouterr().err == "compile: there is no C compiler (/nowhere/cc), so nothing is compiled\n"
    assert backend.get_requires_for_build_wheel() == []


needs_compiler = pytest.mark.skipif(
    shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is None, reason="no C compiler"
)


@needs_compiler
def test_without_the_headers_the_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("CHAPPE_PURE", raising=False)
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert compile.main([str(tmp_path / "new")]) == compile.CANNOT
    assert "headers are missing" in capfd.readouterr().err


@needs_compiler
def test_only_a_wheel_that_can_be_compiled_needs_what_compiles_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CHAPPE_PURE", raising=False)
    monkeypatch.chdir(ROOT)
    assert set(backend.get_requires_for_build_wheel()) == set(compile.REQUIRED)
    assert not {each for each in backend.get_requires_for_build_editable() if each.startswith(("mypy", "setuptools"))}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A project of the same shape with one module to compile."""
    root = tmp_path / "tree"
    for name in ("chappe/__init__.py", "chappe/data/__init__.py", "pyspark_chappe/__init__.py"):
        (root / "src" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "src" / name).write_text("")
    shutil.copy(ROOT / "src" / "chappe" / "compiled.py", root / "src" / "chappe")  # what is compiled imports it
    (root / "src" / "chappe" / "data" / "small.py").write_text("def twice(of: int) -> int:\n    return 2 * of\n")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    return root


def build(root: Path, into: Path, **env: str) -> tuple[Path, str]:
    """The wheel of a project, and what was said meanwhile."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)], cwd=root, text=True,
        env={each: os.environ[each] for each in os.environ if each != "CHAPPE_PURE"} | env,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True,
    )  # fmt: skip
    (wheel,) = into.glob("*.whl")
    return wheel, done.stdout


@needs_compiler
@pytest.mark.process
def test_a_wheel_is_compiled_and_the_same_each_time(small: Path, tmp_path: Path) -> None:
    again = tmp_path / "elsewhere" / "again"
    shutil.copytree(small, again)
    wheel, said = build(small, tmp_path / "one", SOURCE_DATE_EPOCH="1800000000")
    assert "1 modules in 1 parts" in said
    assert not wheel.name.endswith("-any.whl")
    with zipfile.ZipFile(wheel) as file:
        modules = [each for each in file.namelist() if each.endswith(sysconfig.get_config_var("EXT_SUFFIX"))]
        assert "chappe/data/small.py" in file.namelist()
        file.extractall(tmp_path / "installed")
    assert sorted(each.partition(".")[0] for each in modules) == ["chappe/data/small", "chappe_data__mypyc"]
    code = "from chappe.data import small; print(small.twice(21), small.__file__)"
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path / "installed", capture_output=True, text=True,
                         env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")}, check=True)  # fmt: skip
    assert ran.stdout.startswith("42 ")
    assert not ran.stdout.strip().endswith(".py")

    other, _ = build(again, tmp_path / "two", SOURCE_DATE_EPOCH="1800000000")
    assert other.name == wheel.name
    assert other.read_bytes() == wheel.read_bytes()


@pytest.mark.process
def test_what_does_not_compile_is_installed_as_it_is(small: Path, tmp_path: Path) -> None:
    (small / "src" / "chappe" / "data" / "small.py").write_text("class Odd(int):\n    pass\n")
    wheel, said = build(small, tmp_path / "one")
    assert wheel.name.endswith("-py3-none-any.whl")
    assert "so nothing is compiled" in said
    assert "chappe is installed as Python alone" in said


def test_an_installer_gets_the_metadata_without_a_build(small: Path, tmp_path: Path) -> None:
    code = "from tools import backend; print(backend.prepare_metadata_for_build_wheel('.'))"
    made = subprocess.run(
        [sys.executable, "-c", code], cwd=small, env=os.environ | {"PIP_BUILD_TRACKER": str(tmp_path)},
        capture_output=True, text=True, check=True,
    ).stdout.strip()  # fmt: skip
    assert (small / made / "METADATA").read_text().startswith("Metadata-Version")
    assert not list(small.rglob("*.c"))
