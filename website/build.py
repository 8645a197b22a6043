"""Builds the documentation as a site: ``python website/build.py`` makes ``site/`` and asks no other host for anything.

The pages are those of the repository. What they link to outside of ``docs`` comes along: pages as they are, programs
and other texts as pages with their code. The navigation is the index, docs/README.md: its headings and its tables.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
PROJECT: Final = HERE.parent
SITE: Final = PROJECT / "site"
STAGE: Final = PROJECT / "build" / "website"
INDEX: Final = Path("docs/README.md")
LINK: Final = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=[^)]*\))")
SHOWN_AS: Final = {".py": "python", ".sql": "sql", ".toml": "toml"}  # languages of what becomes a page with code
ASSETS: Final = ("site.css", "iframe-worker.js")
PICTURES: Final = {".svg", ".png"}


def build(site: Path = SITE, stage: Path = STAGE) -> str:
    """Make the site at ``site``, in the place of what is there; returns what is wrong with the pages, or nothing.

    Links to pages, files and headings that are not there are wrong, and so are names of the library that are not.
    """
    shutil.rmtree(stage, ignore_errors=True)
    _stage(stage / "pages")
    for asset in ASSETS:
        shutil.copy(HERE / asset, stage / "pages")
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    settings = settings.replace("SOURCES", str(PROJECT / "src"))
    (stage / "zensical.toml").write_text(settings.replace("nav = []", f"nav = {_toml(_navigation())}"), "utf-8")
    made = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--clean", "--strict"],
        cwd=stage,
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        told = re.sub(r"\x1b\[[\d;]*m", "", made.stdout + made.stderr)
        return told.split("Traceback", 1)[0].strip()
    shutil.rmtree(site, ignore_errors=True)
    shutil.copytree(stage / "site", site)
    return ""


def _stage(pages: Path) -> None:
    """Copy the index, all that it leads to, and what that shows."""
    seen: set[Path] = set()
    waiting = [Path("README.md"), INDEX]
    while waiting:
        path = waiting.pop()
        if path in seen or not (PROJECT / path).is_file():
            continue  # what is not there is found wrong by the generator
        seen.add(path)
        target = pages / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix in PICTURES:
            shutil.copy(PROJECT / path, target)
            continue
        text = (PROJECT / path).read_text(encoding="utf-8")
        if path.suffix == ".md":
            waiting += _links(path, text)
            target.write_text(_for_the_generator(LINK.sub(_to_page, text)), encoding="utf-8")
        else:
            shown = _notebook(text) if path.suffix == ".ipynb" else _fenced(text, SHOWN_AS.get(path.suffix, "text"))
            target.with_name(path.name + ".md").write_text(f"# {path}\n\n{shown}", encoding="utf-8")


def _fenced(text: str, language: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```\n"


def _notebook(text: str) -> str:
    """What a notebook has its reader read and run, without what came of it."""
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
    return "\n\n".join(_fenced(source, "python") if kind == "code" else source for kind, source in cells)


def _links(page: Path, text: str) -> Iterator[Path]:
    """What a page leads to, from the project's folder."""
    for target, _ in LINK.findall(text):
        if ":" not in target:
            yield Path(os.path.normpath(page.parent / target))


def _to_page(link: re.Match[str]) -> str:
    """The address of what a link is to: programs and texts are pages here."""
    target = link[0]
    if ":" in target or not link[1] or Path(link[1]).suffix in PICTURES | {".md"}:
        return target
    return link[1] + ".md" + (link[2] or "")


def _for_the_generator(text: str) -> str:
    """What GitHub takes otherwise, in the words of the generator; and commands without a prompt, as they are copied."""
    text = re.sub(r"^\|.*$", lambda row: re.sub(r"`[^`]*`", _bars, row[0]), text, flags=re.MULTILINE)
    return re.sub(r"^```console( .*)?\n((?:\$ .*\n)+)```$", _commands, text, flags=re.MULTILINE)


def _bars(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _commands(block: re.Match[str]) -> str:
    return f"```bash{block[1] or ''}\n" + re.sub(r"^\$ ", "", block[2], flags=re.MULTILINE) + "```"


def _navigation() -> list[object]:
    """Home, then each part of the index: a heading ``How-to: mesh`` is a part within the tab ``How-to``."""
    tabs: dict[str, list[object]] = {}
    for part in re.split(r"^## ", (PROJECT / INDEX).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        rows = re.findall(r"^\| \[([^]]+)\]\(([^)]+)\)", text, re.MULTILINE)
        pages: list[object] = [{name: os.path.normpath(INDEX.parent / target)} for name, target in rows]
        if not pages:
            continue
        tab, _, group = heading.partition(": ")
        tabs.setdefault(tab, []).extend([{group[:1].upper() + group[1:]: pages}] if group else pages)
    return [{"Home": ["README.md", {"All pages": str(INDEX)}]}, *({tab: pages} for tab, pages in tabs.items())]


def _toml(value: object) -> str:
    """Lists, tables of one entry, and strings, as TOML has them on one line."""
    match value:
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
        case _:
            return json.dumps(value)


def main() -> int:
    """Build it, and say where it is."""
    problem = build()
    if problem:
        print(problem + "\n\nThe site was not built: mend what is named above, then run it again.", file=sys.stderr)
        return 1
    print(f"The documentation is built: open {(SITE / 'index.html').as_uri()} in a browser.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
