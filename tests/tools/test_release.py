"""A release is one command: what it changes, what it refuses, and that what it builds is the same each time."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tools import release

pytestmark = pytest.mark.process

ROOT: Final = Path(__file__).parent.parent.parent
CHANGELOG: Final = """# Changelog

## [Unreleased]

### Added

- Something new.

### Changed

- The port is another.

### Removed

- An old option.

## [0.1.0] - 2026-01-31

- Everything.
"""


def git(root: Path, *arguments: str) -> str:
    named = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    return subprocess.run(["git", *named, *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small project of the same shape."""
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "a")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "a@example.org")
    monkeypatch.setenv("CHAPPE_PURE", "1")  # what is compiled is the same each time, too, but takes minutes
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # somebody may have git sign commits, or run hooks
    root = tmp_path / "tree"
    (root / "src" / "chappe").mkdir(parents=True)
    (root / "src" / "pyspark_chappe").mkdir()
    for package in ("chappe", "pyspark_chappe"):
        (root / "src" / package / "__init__.py").write_text("")
    for name in ("pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, root)
    shutil.copytree(ROOT / "tools", root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    project = root / "pyproject.toml"
    project.write_text(release._LINE.sub('version = "0.1.0"', project.read_text()))
    (root / "CHANGELOG.md").write_text(CHANGELOG)
    (root / ".gitignore").write_text("dist/\n__pycache__/\n")
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "Begin")
    return root


def test_a_release_is_one_commit_and_two_files(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["0.2.0"], tree) == 0
    assert git(tree, "log", "-1", "--format=%s") == "Release 0.2.0\n"
    assert git(tree, "status", "--porcelain") == ""
    assert 'version = "0.2.0"' in (tree / "pyproject.toml").read_text()
    changelog = (tree / "CHANGELOG.md").read_text()
    today = changelog.partition("## [0.2.0] - ")[2][:10]
    assert changelog == CHANGELOG.replace("## [Unreleased]\n", f"## [Unreleased]\n\n## [0.2.0] - {today}\n")
    text = (tree / "UPGRADING.md").read_text()
    assert text.startswith("# Upgrading\n")
    assert release.notes(text, "0.2.0") == (
        "## 0.2.0\n\n### Changed\n\n- The port is another.\n\n### Removed\n\n- An old option.\n"
    )
    assert sorted(each.name for each in (tree / "dist").iterdir()) == [
        "chappe-0.2.0-py3-none-any.whl", "chappe-0.2.0.tar.gz",
    ]  # fmt: skip
    assert "git tag v0.2.0" in capsys.readouterr().out

    # the next one, of which there is nothing to say but that it mends something
    changelog = changelog.replace("## [Unreleased]\n", "## [Unreleased]\n\n### Fixed\n\n- A mistake.\n")
    (tree / "CHANGELOG.md").write_text(changelog)
    git(tree, "commit", "--quiet", "--all", "--message", "Mend")
    assert release.main(["0.2.1"], tree) == 0
    both = (tree / "UPGRADING.md").read_text()
    assert "Nothing to do" in release.notes(both, "0.2.1")
    assert both.index("## 0.2.1") < both.index("## 0.2.0")


def test_who_builds_the_commit_of_a_release_gets_the_same_bytes(tree: Path) -> None:
    assert release.main(["0.2.0"], tree) == 0
    at = int(git(tree, "log", "-1", "--format=%ct"))

    again = release.build_twice(tree, tree / "again", at)

    assert [each.read_bytes() for each in again] == [(tree / "dist" / each.name).read_bytes() for each in again]


def test_what_cannot_be_built_is_not_committed_and_leaves_no_trace(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "LICENSE").unlink()
    project = tree / "pyproject.toml"
    project.write_text(project.read_text().replace("README.md", "README.missing"))
    git(tree, "commit", "--quiet", "--all", "--message", "Break")

    assert release.main(["0.2.0"], tree) == 1

    assert "hatchling build" in capsys.readouterr().err
    assert git(tree, "log", "-1", "--format=%s") == "Break\n"
    assert git(tree, "status", "--porcelain") == ""
    assert not (tree / "UPGRADING.md").exists()


def test_a_dry_run_changes_nothing(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release.main(["0.2.0", "--dry-run"], tree) == 0
    assert "The port is another" in capsys.readouterr().out
    assert git(tree, "status", "--porcelain") == ""
    assert not (tree / "dist").exists()


@pytest.mark.parametrize(
    ("version", "said"),
    [
        ("0.0.9", "not later than 0.1.0"),
        ("0.1.0", "not later than 0.1.0"),
        ("0.1.0rc1", "not later"),
        ("2", "not a version"),
    ],
)
def test_a_version_that_is_not_later_is_refused(
    tree: Path, version: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert release.main([version], tree) == 1
    assert said in capsys.readouterr().err
    assert git(tree, "status", "--porcelain") == ""


def test_a_tree_with_changes_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "src" / "chappe" / "new.py").write_text("")
    assert release.main(["0.2.0"], tree) == 1
    assert "commit first what is not committed: src/chappe/new.py" in capsys.readouterr().err


def test_a_release_without_news_is_refused(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "CHANGELOG.md").write_text("# Changelog\n\n## [Unreleased]\n\n## [0.1.0] - 2026-01-31\n\n- All.\n")
    git(tree, "commit", "--quiet", "--all", "--message", "Nothing")
    assert release.main(["0.2.0"], tree) == 1
    assert "nothing under ## [Unreleased]" in capsys.readouterr().err


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Wheel and sdist of this project, from two copies of the tree that differ in what must not matter."""
    made = []
    for number, mask in enumerate((0o022, 0o077)):
        root = tmp_path_factory.mktemp("tree") / f"copy{number}"
        former = os.umask(mask)
        try:
            shutil.copytree(
                ROOT, root, copy_function=shutil.copy, ignore=shutil.ignore_patterns(".venv", ".git", ".*_cache")
            )
        finally:
            os.umask(former)
        for junk in ("secret.key", "chappe-data/topics/t/0000000000000001.seg", "src/chappe/__pycache__/x.pyc"):
            (root / junk).parent.mkdir(parents=True, exist_ok=True)
            (root / junk).write_text(str(number))
        command = [sys.executable, "-m", "hatchling", "build", "-d", str(root / "out")]
        subprocess.run(
            command, cwd=root, check=True, capture_output=True,
            env=os.environ | {"SOURCE_DATE_EPOCH": "1800000000", "CHAPPE_PURE": "1"},
        )  # fmt: skip
        made.append(root / "out")
    return made


def test_the_same_tree_makes_the_same_bytes(built: list[Path]) -> None:
    one, two = ({each.name: each.read_bytes() for each in sorted(where.iterdir())} for where in built)
    assert [name.rpartition(".")[2] for name in one] == ["whl", "gz"]
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []


def test_the_wheel_has_the_packages_and_nothing_else(built: list[Path]) -> None:
    (wheel,) = built[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = set(file.namelist())
    info = wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info"
    about = {f"{info}/{each}" for each in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    assert about <= names
    source = ROOT / "src"
    kept = {
        str(each.relative_to(source))
        for package in ("chappe", "pyspark_chappe")
        for each in (source / package).rglob("*")
        if each.is_file() and each.suffix != ".pyc"
    }
    assert names - about == kept
    assert {Path(each).suffix for each in kept} <= {".py", ".typed", ".properties", *ASSETS}


def test_what_a_package_index_shows_leads_to_no_file_beside_it(built: list[Path]) -> None:
    (wheel,) = built[0].glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        (name,) = [each for each in file.namelist() if each.endswith("/METADATA")]
        shown = file.read(name).decode()
    links = re.findall(r"\]\(([^)]*)\)", shown)
    assert [each for each in links if not each.startswith(("https://", "http://", "#"))] == []
    assert "![" not in shown
    assert "Begin: first topic, sensors, recipes" in shown


ASSETS: Final = (".html", ".css", ".js", ".svg", ".woff2")  # of pages that are served


def test_the_sdist_has_what_builds_and_tests_it_and_nothing_else(built: list[Path]) -> None:
    (sdist,) = built[0].glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        members = file.getmembers()
    top = sdist.name.removesuffix(".tar.gz")
    names = {each.name.removeprefix(f"{top}/") for each in members}
    assert {each.partition("/")[0] for each in names} == {
        *(".ci", ".gitignore", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE", "PKG-INFO", "README.md", "UPGRADING.md"),
        *("benchmarks", "deploy", "docs", "examples", "pyproject.toml", "run.py", "src", "tests", "tools", "website"),
    }
    assert {"src/chappe/py.typed", "tests/tools/test_release.py", "docs/README.md", "run.py"} <= names
    assert not any(each.endswith((".pyc", ".key", ".seg")) and "vectors" not in each for each in names)
    assert all(each.uid == each.gid == 0 and not each.mode & stat.S_IWOTH for each in members)
