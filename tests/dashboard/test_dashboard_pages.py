"""Each page in a real browser, over a running system of real processes; and over stand-ins for what nobody starts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect
from tests.dashboard.browsing import Seen, crowded, rows, started, watched
from tests.dashboard.scene import HOSTILE_KEY, HOSTILE_TOPIC, HOSTILE_VALUE
from tests.waiting import PATIENCE_S, until
from tests.web.test_browser import CHROMIUM, MISSING

PICTURES: Final = Path(__file__).parent.parent.parent / "docs" / "how-to"
PICTURES_WANTED: Final = "CHAPPE_PICTURES" in os.environ  # then the pictures that the docs show are made anew
PICTURE_BYTES_MAX: Final = 200_000
# The texts that a chart really draws: those that are hidden, as they would overlap others, are not among them.
LABELS: Final = """() => getElement(Number(document.querySelector(".map").id.slice(1))).chart.getZr().storage
  .getDisplayList(true).map(each => each.style && each.style.text).filter(Boolean)"""
PATHS: Final = ("/", "/topics", "/mesh", "/stores", "/pipelines", "/health")

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


@dataclass
class System:
    """Processes, and where their dashboard is."""

    url: str
    processes: dict[str, subprocess.Popen[bytes]]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHAPPE_")}
    env |= {f"XDG_{each}_HOME": str(home) for each in ("STATE", "CONFIG", "DATA")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent.parent), env.get("PYTHONPATH", "")])
    with (
        started(env, "chappe", "up", str(home / "up"), "--tower", "127.0.0.1:0", "--json") as (up, facts),
        started(env, "chappe", "store", str(home / "second"), "--tower", facts["tower"], "--json") as (second, _),
        started(env, "tests.dashboard.scene", str(home / "chappe"), facts["tower"]) as (scene, made),
        started(
            env, "chappe", "dashboard", "--tower", facts["tower"], "--peer", made["mesh"], "--map", made["map"],
            "--chain", made["chain"], "--at", "0", "--json",
        ) as (dashboard, said),
    ):  # fmt: skip
        processes = {"up": up, "second": second, "scene": scene, "dashboard": dashboard}
        yield System(said["url"].rstrip("/"), processes)


def picture(page: Page, name: str) -> None:
    """Make a picture that the docs show, where that is asked for; and see that it is not too large."""
    raw = page.screenshot(path=PICTURES / name if PICTURES_WANTED else None)
    assert len(raw) < PICTURE_BYTES_MAX


def test_every_page_opens_talks_to_its_own_host_alone_and_complains_of_nothing(
    system: System, page: Page, seen: Seen
) -> None:
    for path in PATHS:
        page.goto(system.url + path)
        expect(page.locator("nav a[aria-current=page]")).to_have_count(1)
        expect(page.locator(".panel").first).to_be_visible()

    assert seen.hosts == {urlsplit(system.url).netloc}
    assert seen.errors == []


def test_the_map_shows_who_takes_part_and_a_choice_shows_one(system: System, page: Page) -> None:
    page.goto(system.url)
    members = rows(page, "Members")
    search = page.get_by_label("Find a member")
    for kind in ("tower", "store", "producers", "consumers", "endpoint", "map server", "chain server", "witness"):
        search.fill(kind)
        expect(members.first).to_contain_text(kind)
    expect(page.locator("canvas").first).to_be_visible()
    search.fill("group")
    expect(members).to_have_count(1)

    search.fill("store")
    expect(members).to_have_count(2)
    members.filter(has_text="store").first.focus()
    page.keyboard.press("Enter")

    expect(page.get_by_text("questions at")).to_be_visible()
    expect(page.get_by_text("link to producers").first).to_be_visible()
    expect(page.locator("nav", has_text="all is well")).to_be_visible()
    search.fill("")
    expect(members).to_have_count(15)
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")
    picture(page, "dashboard-map.png")

    search.fill("endpoint")
    members.filter(has_text="endpoint").filter(has_text="1").first.click()
    link = page.get_by_text("no TLS").first  # of links of others, too, their ends tell
    expect(link).to_contain_text("frames/s sent")


def test_every_server_of_a_pair_and_a_chain_has_its_label_on_the_map_and_so_has_the_witness(
    system: System, browser: Browser, page: Page
) -> None:
    wanted = [
        "oslo, head",
        "bern, middle",
        "rome, tail",
        ", active",
        ", passive",
        "witness 127",
    ]
    small = browser.new_context(viewport={"width": 390, "height": 800})
    for each in (page, watched(small.new_page(), Seen())):
        each.goto(system.url)
        expect(each.locator("canvas").first).to_be_visible()

        def found(each: Page = each) -> list[str]:
            return sorted(text for label in each.evaluate(LABELS) for text in set(wanted) if text in label)

        until(lambda found=found: found() == sorted(wanted), lambda found=found: f"{found()}")  # type: ignore[misc]
    small.close()


def test_topics_show_rates_and_lags_and_records_are_found_and_saved(system: System, page: Page) -> None:
    page.goto(f"{system.url}/topics")
    topics = rows(page, "Topics")
    topics.filter(has_text="orders").click()
    expect(page.get_by_text("read by group billing")).to_be_visible()
    expect(rows(page, "Records").first).to_contain_text("room-")
    expect(page.locator("canvas")).to_have_count(2)
    if PICTURES_WANTED:
        page.wait_for_timeout(45_000)  # for lines that are worth a look
    picture(page, "dashboard-topic.png")

    page.get_by_label("Contains", exact=True).fill('"number": 3,')
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_text("looked through")).to_be_visible()
    expect(rows(page, "Records").first).to_contain_text('"number": 3,')

    for kind, ending in (("JSON", ".jsonl"), ("Parquet", ".parquet")):
        with page.expect_download() as download:
            page.get_by_role("button", name=kind, exact=True).click()
        assert download.value.suggested_filename == f"orders{ending}"
        raw = Path(download.value.path()).read_bytes()
        assert b'"number": 3,' in raw.replace(b"\\", b"") or raw.startswith(b"PAR1")

    page.get_by_label("Topic contains").fill("humid")
    expect(topics).to_have_count(1)
    expect(topics.first).to_contain_text("sensors.humidity")


def test_a_record_with_markup_everywhere_is_shown_as_text(system: System, page: Page, seen: Seen) -> None:
    page.goto(f"{system.url}/topics")
    rows(page, "Topics").filter(has_text="<img").click()
    expect(page.locator(".title", has_text=HOSTILE_TOPIC)).to_be_visible()
    rows(page, "Records").first.click()

    values = page.locator(".q-dialog .value")

    expect(values.nth(0)).to_have_text(HOSTILE_KEY.decode())
    expect(values.nth(1)).to_have_text(HOSTILE_VALUE.decode())
    expect(values.nth(2)).to_have_text("<iframe src=javascript:alert(4)>")
    assert page.title() == f"{HOSTILE_TOPIC} · Topics · chappe"
    assert page.locator("img, svg[onload], iframe, h1").count() == 0
    assert seen.errors == []
    page.reload()
    expect(rows(page, "Topics").filter(has_text="<img")).to_be_visible()
    assert seen.errors == []


def test_a_script_that_somebody_brings_into_a_page_does_not_run(system: System, page: Page, seen: Seen) -> None:
    page.goto(system.url)
    expect(rows(page, "Members").first).to_be_visible()

    page.evaluate(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'window.ran=1'}))"
    )
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran=2\">')")

    until(lambda: any("Content Security Policy" in each for each in seen.errors))
    assert page.evaluate("window.ran") is None
    assert page.evaluate("fetch('http://127.0.0.1:1/').then(() => 1, () => 0)") == 0
    assert seen.hosts == {urlsplit(system.url).netloc}


def test_live_events_of_a_prefix_come_until_they_are_paused(system: System, page: Page) -> None:
    page.goto(f"{system.url}/mesh")
    page.get_by_label("Topics that begin with").fill("/zeek")
    page.get_by_role("button", name="Look").click()
    expect(rows(page, "Live messages").first).to_contain_text("<b>markup</b>")

    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("Paused.")).to_be_visible()
    before = rows(page, "Live messages").first.inner_text()
    page.wait_for_function("() => new Promise(done => setTimeout(() => done(true), 1200))")
    assert rows(page, "Live messages").first.inner_text() == before


def test_a_data_store_and_a_map_are_looked_into(system: System, page: Page) -> None:
    page.goto(f"{system.url}/stores")
    keepings = rows(page, "Data stores and maps")
    keepings.filter(has_text="prices").click()
    expect(rows(page, "Entries").first).to_contain_text("share-")
    expect(rows(page, "Changes").first).to_contain_text("update")

    page.get_by_label("Key or value contains").fill("share-07")
    expect(rows(page, "Entries")).to_have_count(1)
    page.get_by_label("Key or value contains").fill("")
    keepings.filter(has_text="map").first.click()
    expect(rows(page, "Entries").first).to_contain_text("/rooms/<b>1</b>/light")


def test_light_and_dark_and_a_small_screen(system: System, browser: Browser, seen: Seen) -> None:
    small = browser.new_context(viewport={"width": 390, "height": 800}, color_scheme="dark")
    page = watched(small.new_page(), seen)
    page.goto(system.url)
    expect(rows(page, "Members").first).to_be_visible()

    assert page.evaluate("document.body.classList.contains('body--dark')")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    shades = [page.evaluate("getComputedStyle(document.body).backgroundColor")]
    page.get_by_role("button", name="Colours").click()
    page.get_by_role("button", name="Colours: dark").click()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()
    page.wait_for_function("document.body.classList.contains('body--light')")
    shades.append(page.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert shades[0] != shades[1]
    small.close()


def test_a_thousand_members_and_a_hundred_thousand_topics_are_shown_grouped_and_bounded(
    browser: Browser, page: Page, seen: Seen
) -> None:
    with crowded() as url:
        page.goto(url)
        expect(page.locator(".fact", has_text="members")).to_contain_text("1,000")
        expect(page.locator(".fact", has_text="topics")).to_contain_text("100,000")
        page.get_by_label("Find a member").fill("e777")
        expect(rows(page, "Members")).to_have_count(1)

        page.goto(f"{url}/topics")
        expect(page.get_by_text("100,000 topics, 500 of them listed")).to_be_visible()
        expect(rows(page, "Topics")).to_have_count(15)
        page.get_by_label("Topic contains").fill("topic-054321")
        expect(rows(page, "Topics")).to_have_count(1)

        page.goto(f"{url}/pipelines")
        expect(page.get_by_text("<i>flow</i>")).to_be_visible()
        expect(rows(page, "Queries of 1").first).to_contain_text("2.5")

        page.goto(f"{url}/health")
        expect(page.get_by_text("search finds the others")).to_be_visible()
        assert seen.errors == []


def test_ten_viewers_who_come_and_go_leave_nothing_behind(system: System, browser: Browser) -> None:
    """A short form of what was measured by hand: threads, descriptors and memory are as before."""
    process = system.processes["dashboard"].pid

    def held() -> tuple[int, int]:
        status = Path(f"/proc/{process}/status").read_text()
        memory = int(status.split("VmRSS:")[1].split()[0])
        return len(os.listdir(f"/proc/{process}/fd")), memory // 1024

    def come_and_go() -> None:
        viewers = [browser.new_page() for _ in range(10)]
        for number, viewer in enumerate(viewers):
            viewer.set_default_timeout(PATIENCE_S * 1000)
            viewer.goto(system.url + PATHS[number % len(PATHS)])
        for viewer in viewers:
            expect(viewer.locator(".panel").first).to_be_visible()
            viewer.close()

    if not Path("/proc/self/fd").exists():
        pytest.skip("there is no /proc")
    come_and_go()
    descriptors, memory = held()
    come_and_go()
    until(lambda: held()[0] <= descriptors + 5, lambda: f"{held()} after {descriptors}, {memory}")
    assert held()[1] < memory + 60


def test_a_store_that_is_killed_while_it_is_looked_at_is_told_of(system: System, page: Page) -> None:
    """The last one: it leaves the system with one store."""
    page.goto(f"{system.url}/topics")
    rows(page, "Topics").filter(has_text="orders").click()
    expect(rows(page, "Records").first).to_contain_text("room-")

    system.processes["second"].send_signal(signal.SIGKILL)

    expect(page.locator("nav a[href='/health']", has_text="failed")).to_be_visible()
    page.get_by_role("link", name="Health").click()
    problem = page.locator(".problem.failed").first
    expect(problem).to_contain_text("does not answer")
    expect(page.get_by_text("has left")).to_have_count(0)
    expect(problem).to_contain_text(re.compile("chappe store .*second --tower"))
    picture(page, "dashboard-health.png")
    page.goto(f"{system.url}/topics")
    rows(page, "Topics").filter(has_text="orders").click()
    expect(rows(page, "Records").first).to_contain_text("room-")  # the other store has them, too
