"""Make a release in one command: the version, the changelog, the upgrade notes, and both files, built twice.

    python -m tools.release 0.2.0 --dry-run      say what would be done, and change nothing
    python -m tools.release 0.2.0                do it, and commit it

The version stands in one place, pyproject.toml. *Unreleased* in CHANGELOG.md becomes the version with the date, and an
empty one is begun above it. UPGRADING.md gets what whoever upgrades must know: the changes and removals, and for what
is on disk the formats that this version writes. Then the sdist and two wheels are built twice, and refused if their
bytes differ; they are in dist/. One wheel is compiled, for this Python and platform, the other pure, for all; where
nothing can be compiled, or with CHAPPE_PURE=1, there is the pure one alone. Only what was built is committed; else all
files are as they were. A tree with changes that are not committed is refused, and so is a version that is not later
than the last one. Nothing is published and nothing is tagged: the last line says how.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
PROJECT: Final = "pyproject.toml"
CHANGELOG: Final = "CHANGELOG.md"
UPGRADING: Final = "UPGRADING.md"
UNRELEASED: Final = "## [Unreleased]"
SECTIONS: Final = ("Changed", "Deprecated", "Removed", "Security")  # what upgrades are about; all else is new or mended
UPGRADING_HEAD: Final = """# Upgrading

What to know before you install a newer version, the newest first. All changes are in [the changelog](CHANGELOG.md).
Data that an older version wrote is opened by every newer one; a store, journal or archive that a newer version has
written is refused by an older one, with a sentence, and is not changed.
"""
_VERSION: Final = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
_LINE: Final = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


class Refused(Exception):
    """Why there is no release, in a sentence."""


def main(arguments: Sequence[str], root: Path = ROOT) -> int:
    """Make a release of the tree at ``root``; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("version", help="such as 0.2.0, or 0.2.0rc1")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    asked = parser.parse_args(arguments)
    try:
        changed = prepare(root, asked.version, datetime.now(UTC).date().isoformat())
        if asked.dry_run:
            for name, text in changed.items():
                print(f"{name}: {len(text.splitlines())} lines, version {asked.version}")
            print(f"\n{notes(changed[UPGRADING], asked.version)}")
            print("nothing was changed: leave out --dry-run to do it")
            return 0
        for name, text in changed.items():
            (root / name).write_text(text, encoding="utf-8")
        at = int(datetime.now(UTC).timestamp())  # of the commit, and of all that is in the files
        dated = {"GIT_AUTHOR_DATE": f"{at} +0000", "GIT_COMMITTER_DATE": f"{at} +0000"}
        try:
            built = build_twice(root, root / "dist", at)
            _run(root, "git", "add", *changed)
            _run(root, "git", "commit", "--quiet", "--message", f"Release {asked.version}", **dated)
        except Refused:
            _take_back(root, changed)
            raise
        for path in built:
            print(f"{path.name}: {path.stat().st_size:,} bytes, sha256 {_digest(path)}")
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    print(f"next: python -m tools.try_wheel dist/chappe-{asked.version}-*.whl && git tag v{asked.version}")
    return 0


def prepare(root: Path, version: str, date: str) -> dict[str, str]:
    """The files as they will be, by name. Raises Refused."""
    if _VERSION.fullmatch(version) is None:
        raise Refused(f"{version!r} is not a version: write it as 0.2.0 or 0.2.0rc1")
    if dirty := _run(root, "git", "status", "--porcelain").strip():
        raise Refused(f"commit first what is not committed: {', '.join(line[3:] for line in dirty.splitlines()[:5])}")
    project = (root / PROJECT).read_text(encoding="utf-8")
    found = _LINE.findall(project)
    if len(found) != 1:
        raise Refused(f"{PROJECT} has {len(found)} lines with a version, not one")
    changelog = (root / CHANGELOG).read_text(encoding="utf-8")
    released = f"\n## [{found[0]}]" in changelog
    if _order(version) < _order(found[0]) or (released and version == found[0]):
        raise Refused(f"{version} is not later than {found[0]}")
    head, _, rest = changelog.partition(f"{UNRELEASED}\n")
    body, mark, older = rest.partition("\n## [")
    if not rest or not body.strip():
        raise Refused(f"{CHANGELOG} has nothing under {UNRELEASED}: say there what is new")
    upgrading = root / UPGRADING
    former = upgrading.read_text(encoding="utf-8") if upgrading.exists() else UPGRADING_HEAD
    intro, mark_of_first, sections = former.partition("\n## ")
    return {
        PROJECT: _LINE.sub(f'version = "{version}"', project),
        CHANGELOG: f"{head}{UNRELEASED}\n\n## [{version}] - {date}\n{body}{mark}{older}",
        UPGRADING: f"{intro}\n## {version}\n\n{_about(body)}{mark_of_first}{sections}",
    }


def _about(body: str) -> str:
    """What a section of the changelog says to whoever upgrades."""
    parts = re.split(r"^### (.+)$", body, flags=re.MULTILINE)
    wanted = {name.strip(): text.strip() for name, text in zip(parts[1::2], parts[2::2], strict=True)}
    found = [f"### {name}\n\n{wanted[name]}\n" for name in SECTIONS if wanted.get(name)]
    return "\n".join(found) if found else "Nothing to do: nothing that was there has changed.\n"


def notes(text: str, version: str) -> str:
    """The section of a version in what ``prepare`` made of the upgrade notes."""
    return f"## {version}" + text.partition(f"\n## {version}")[2].partition("\n## ")[0].rstrip() + "\n"


def _take_back(root: Path, changed: Iterable[str]) -> None:
    """Have the files as they were."""
    _run(root, "git", "reset", "--quiet")
    for name in changed:
        if _is_kept(root, name):
            _run(root, "git", "checkout", "--quiet", "HEAD", "--", name)
        else:
            (root / name).unlink(missing_ok=True)


def build_twice(root: Path, into: Path, at: int) -> list[Path]:
    """Build both wheels and the sdist, and again in another directory; all are the same. Raises Refused.

    Args:
        at: The time of all that is in them, in seconds since 1970: whoever builds the commit has it from there.
    """
    epoch = str(at)
    with tempfile.TemporaryDirectory() as other:
        for each in (into, Path(other)):
            build = (sys.executable, "-m", "hatchling", "build", "-d", str(each))
            _run(root, *build, SOURCE_DATE_EPOCH=epoch)
            _run(root, *build, "-t", "wheel", SOURCE_DATE_EPOCH=epoch, CHAPPE_PURE="1")
        names = sorted(each.name for each in Path(other).iterdir())
        for name in names:
            if _digest(into / name) != _digest(Path(other) / name):
                raise Refused(f"{name} has other bytes when it is built again")
        return [into / name for name in names]


def _order(version: str) -> tuple[int, ...]:
    match = _VERSION.fullmatch(version)
    if match is None:
        raise Refused(f"the version in {PROJECT} is {version!r}, which has no order: correct it first")
    major, minor, patch, stage, number = match.groups()
    return int(major), int(minor), int(patch), ("a", "b", "rc", None).index(stage), int(number or 0)


def _is_kept(root: Path, name: str) -> bool:
    return bool(_run(root, "git", "ls-tree", "HEAD", name))


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _run(root: Path, *command: str, **env: str) -> str:
    done = subprocess.run(command, cwd=root, env=os.environ | env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(
            f"{' '.join(command[:4])} ended with {done.returncode}: {(done.stderr or done.stdout).strip()[-500:]}"
        )
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
