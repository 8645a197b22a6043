"""The documentation as a site: it builds, every link in it leads somewhere, and no page needs another host."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pytest
from playwright.sync_api import sync_playwright
from run import _packages
from tests.waiting import PATIENCE_S
from tests.web.test_browser import ARGUMENTS, CHROMIUM, MISSING
from website.build import INDEX, PROJECT, build
from website.pictures import DOCS, PICTURES

import chappe
import chappe.spark
import chappe.subscribers
import chappe.testing

API: Final = PROJECT / "docs" / "reference" / "api"
# Attributes that have a browser fetch what they name, without anybody's doing; a link is followed by its reader.
FETCHED: Final = {"src", "srcset", "poster", "data"}
ELSEWHERE: Final = re.compile(r"""(?:url\(|@import\s+)\s*["']?(?:https?:)?//""")

pytestmark = [pytest.mark.process]


class Html(HTMLParser):
    """What a page is made of: its anchors, where it leads, and what a browser fetches for it."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self.anchors: set[str] = set()
        self.leads: list[str] = []
        self.fetches: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not value:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif name == "href" and tag == "link":
                self.fetches.append(value)
            elif name == "href":
                self.leads.append(value)
            elif name in FETCHED:
                self.fetches.append(value)


class Site:
    """The site as it was built: its pages, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def pages(self) -> dict[Path, Html]:
        return {path: Html(path) for path in sorted(self.root.rglob("*.html"))}

    def missing(self, page: Html, targets: list[str]) -> Iterator[str]:
        """Which of the targets within the site are not there."""
        for target in targets:
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = unquote(target).partition("#")
            base = self.root if path.startswith("/") else page.path.parent
            file = (base / path.lstrip("/")).resolve() if path else page.path
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file() or (anchor and file in self.pages and anchor not in self.pages[file].anchors):
                yield target


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    root = tmp_path_factory.mktemp("website")
    assert build(root / "site", root / "stage") == ""
    return Site((root / "site").resolve())


def test_every_page_of_the_documentation_is_there(site: Site) -> None:
    wanted = {path.relative_to(PROJECT) for path in (PROJECT / "docs").rglob("*.md")}
    built = {path.relative_to(site.root) for path in site.pages}
    assert {path.with_suffix(".html") for path in wanted if path.name != "README.md"} - built == set()
    assert Path("index.html") in built
    assert INDEX.with_name("index.html") in built


def test_every_link_and_anchor_of_the_site_leads_somewhere(site: Site) -> None:
    wrong = {
        str(path.relative_to(site.root)): found
        for path, page in site.pages.items()
        if path.name != "404.html" and (found := [*site.missing(page, page.leads), *site.missing(page, page.fetches)])
    }
    assert wrong == {}


def test_commands_are_copied_without_their_prompt_also_below_a_title(site: Site) -> None:
    page = (site.root / "docs" / "how-to" / "dashboard.html").read_text(encoding="utf-8")
    assert "once</span>" in page
    assert "$ " not in "".join(re.findall(r"<code>.*?</code>", page, re.DOTALL))


def test_no_page_has_a_browser_fetch_from_another_host(site: Site) -> None:
    fetched = {target for page in site.pages.values() for target in page.fetches}
    assert [target for target in fetched if re.match(r"(https?:)?//", target)] == []
    styles = [path.name for path in site.root.rglob("*.css") if ELSEWHERE.search(path.read_text(encoding="utf-8"))]
    assert styles == []


@pytest.mark.skipif(CHROMIUM is None, reason=MISSING)
def test_in_a_browser_the_search_finds_pages_and_nothing_comes_from_elsewhere(site: Site) -> None:
    asked: set[str] = set()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_S * 1000)
        page.on("request", lambda request: asked.add(request.url.split(":")[0]))
        page.goto((site.root / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("exactly once")
        page.wait_for_selector("text=How to write to topics")
        page.goto((site.root / "docs" / "explanation" / "architecture.html").as_uri())
        page.wait_for_selector("img")
        browser.close()
    assert asked <= {"file", "blob", "data"}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_as_they_are_drawn(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PICTURES[name]().svg(), "run python -m website.pictures"


def test_every_public_name_is_on_a_page_of_the_api(site: Site) -> None:
    packages = (chappe, chappe.spark, chappe.subscribers, chappe.testing)
    names = {name for package in packages for name in package.__all__ if name != "__version__"}
    headings = "".join(
        (site.root / "docs/reference/api" / f"{path.stem}.html").read_text() for path in API.glob("*.md")
    )
    shown = set(re.findall(r'class="doc doc-object-name doc-(?:class|function)-name">(\w+)<', headings))
    assert names - shown == set()


def test_no_drawing_is_left_to_a_program_of_another_host() -> None:
    """Mermaid would be: draw it in ``website/pictures.py``."""
    pages = [*PROJECT.glob("*.md"), *(PROJECT / "docs").rglob("*.md")]
    assert [page for page in pages if "```mermaid" in page.read_text(encoding="utf-8")] == []


def test_who_has_the_tools_can_build_the_site() -> None:
    assert set(_packages("docs")) < set(_packages("dev"))


def test_a_page_that_leads_nowhere_stops_the_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("src", "website"):
        (tmp_path / name).symlink_to(PROJECT / name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "README.md").write_text("# Home\n\n[gone](docs/gone.md)\n")
    (tmp_path / INDEX).write_text("# Index\n\n## Tutorials\n\n| | |\n|---|---|\n| [Home](../README.md) | |\n")
    monkeypatch.setattr("website.build.PROJECT", tmp_path)

    problem = build(tmp_path / "site", tmp_path / "stage")

    assert "README.md:3" in problem
    assert "page does not exist" in problem
    assert not (tmp_path / "site").exists()
