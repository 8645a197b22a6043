"""What ``--allow-changes`` lets people do: in a browser over real processes, with what is lost told before."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect
from tests.dashboard.browsing import rows, started
from tests.waiting import PATIENCE_S, until
from tests.web.test_browser import CHROMIUM, MISSING

from chappe import Consumer, Endpoint, Producer, SharedMap, list_topics
from chappe.dashboard.changes import DashboardChanges
from chappe.dashboard.entries import Entries
from chappe.dashboard.leases import Leases
from chappe.errors import UsageError

pytestmark = [pytest.mark.process, pytest.mark.skipif(CHROMIUM is None, reason=MISSING)]


@dataclass
class Open:
    """A dashboard that may change things, and what it looks at."""

    url: str  # with the token
    tower: str
    mesh: str
    map: str
    env: dict[str, str]


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Open]:
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHAPPE_")}
    env |= {f"XDG_{each}_HOME": str(home) for each in ("STATE", "CONFIG", "DATA")}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent.parent.parent), env.get("PYTHONPATH", "")])
    with (
        started(env, "chappe", "up", str(home / "up"), "--tower", "127.0.0.1:0", "--json") as (_, facts),
        started(env, "tests.dashboard.scene", str(home / "elsewhere"), facts["tower"]) as (_, made),
        started(
            env, "chappe", "dashboard", "--tower", facts["tower"], "--peer", made["mesh"], "--map", made["map"],
            "--at", "0", "--allow-changes", "--json",
        ) as (_, said),
    ):  # fmt: skip
        yield Open(said["url"], facts["tower"], made["mesh"], made["map"], env)


def come(page: Page, opened: Open, path: str) -> None:
    where, _, query = opened.url.partition("/?")
    page.goto(f"{where}{path}?{query}")
    expect(page.get_by_text("changes are allowed")).to_be_visible()


def confirm(page: Page, verb: str, *loses: str) -> None:
    """Read what is lost, and want it."""
    dialog = page.locator(".q-dialog .confirm")
    for each in loses:
        expect(dialog).to_contain_text(each)
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)


def kept(opened: Open, topic: str) -> int:
    (found,) = list_topics(topic, tower=opened.tower)
    return found.records


def test_without_the_token_nobody_sees_a_page_also_on_this_machine(opened: Open) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(opened.url.partition("?")[0], timeout=PATIENCE_S)
    assert refused.value.code == 403
    assert b"a token is needed" in refused.value.read()


def test_a_topic_is_begun_written_trimmed_and_deleted(opened: Open, page: Page) -> None:
    come(page, opened, "/topics")
    for number in range(2):
        page.get_by_label("Topic to write to").fill("made.here")
        page.get_by_label("Key to write").fill("k")
        page.get_by_label("Value to write").fill(f"<b>{number}</b>")
        page.get_by_role("button", name="Write", exact=True).click()
        begins = "No store has a topic made.here yet" if number == 0 else "gets the record"
        confirm(page, "Write it", "Nothing is lost.", begins)
        expect(page.get_by_text("The record is in made.here.")).to_be_visible()
        expect(rows(page, "Topics").filter(has_text="made.here")).to_be_visible()

    rows(page, "Topics").filter(has_text="made.here").click()
    expect(rows(page, "Records")).to_have_count(2)
    page.get_by_label("Older than (UTC)").fill("2020-01-01 00:00")
    page.get_by_role("button", name="Trim", exact=True).click()
    confirm(page, "Trim the topic", "The oldest 0 records of made.here")
    expect(page.get_by_text("0 records are gone at 1 of 1 store.")).to_be_visible()
    assert kept(opened, "made.here") == 2

    page.get_by_role("button", name="Delete all records", exact=True).click()
    page.get_by_role("button", name="Cancel").click()
    assert kept(opened, "made.here") == 2
    page.get_by_role("button", name="Delete all records", exact=True).click()
    confirm(page, "Delete them", "All 2 records of made.here", "are lost for ever", "at 1 store")
    expect(page.get_by_text("2 records are gone at 1 of 1 store.")).to_be_visible()
    assert kept(opened, "made.here") == 0
    expect(page.get_by_text("no records")).to_be_visible()


def test_a_group_goes_on_elsewhere(opened: Open, page: Page, tmp_path: Path) -> None:
    with Producer("billed", tower=opened.tower) as producer:
        for number in range(5):
            producer.send(str(number))
        producer.flush(PATIENCE_S)
    base = Path(opened.env["XDG_DATA_HOME"]) / "chappe"

    def read() -> int:
        with Consumer("billed", tower=opened.tower, identity="clerk", directory=base) as consumer:
            count = 0
            while count < 5:
                batch = consumer.poll(PATIENCE_S)
                assert batch is not None
                count += len(batch)
            consumer.commit()
            return count

    assert read() == 5
    come(page, opened, "/topics")
    rows(page, "Topics").filter(has_text="billed").click()
    expect(page.get_by_text("read by group clerk")).to_be_visible()
    page.get_by_role("combobox", name="Group").click()
    page.get_by_role("option", name="clerk").click()
    page.get_by_role("button", name="Reset", exact=True).click()
    confirm(page, "Reset the group", "positions that clerk has committed are lost", "read 5 records again")
    expect(page.get_by_text("Group clerk goes on at the earliest record")).to_be_visible()

    assert read() == 5
    with Consumer("billed", tower=opened.tower, identity="clerk", directory=base):
        page.get_by_role("button", name="Reset", exact=True).click()
        confirm(page, "Reset the group", "has to be stopped")
        expect(page.get_by_text("uses the identity")).to_be_visible()


def test_entries_of_a_map_and_of_a_data_store_are_set_and_deleted(opened: Open, page: Page) -> None:
    come(page, opened, "/stores")
    with SharedMap(*opened.map.split(","), values=str) as shared:
        rows(page, "Data stores and maps").filter(has_text="map").first.click()
        expect(rows(page, "Entries").first).to_contain_text("/rooms")
        for value, lost in (("warm", "Nothing is lost."), ("cold", "The value that /new has now is lost: warm")):
            page.get_by_label("Key to set").fill("/new")
            page.get_by_label("Value to set").fill(value)
            page.get_by_role("button", name="Set", exact=True).click()
            confirm(page, "Set it", lost)
            until(lambda value=value: shared.get("/new") == value)  # type: ignore[misc]

        rows(page, "Entries").filter(has_text="/new").click()
        page.get_by_role("button", name="Delete the chosen entry").click()
        confirm(page, "Delete it", "The entry /new is lost", "cold")
        until(lambda: "/new" not in shared)
        assert len(shared) == 1

    rows(page, "Data stores and maps").filter(has_text="prices").click()
    expect(rows(page, "Entries").filter(has_text="share-").first).to_be_visible()
    page.get_by_label("Key to set").fill("mine")
    page.get_by_label("Value to set").fill('{"a": 1}')
    page.get_by_role("button", name="Set", exact=True).click()
    confirm(page, "Set it", "Nothing is lost.")
    page.get_by_label("Key or value contains").fill("mine")
    expect(rows(page, "Entries")).to_have_count(1)
    expect(rows(page, "Entries").first).to_contain_text("{a -> 1}")
    page.get_by_role("button", name="Delete all entries").click()
    confirm(page, "Delete all", "entries of data store prices are lost")
    expect(page.get_by_text("Data store prices is empty.")).to_be_visible()
    expect(rows(page, "Entries")).to_have_count(0)


def test_a_test_event_is_published_to_whoever_wants_it(opened: Open, page: Page) -> None:
    host, port = opened.mesh.split(":")
    come(page, opened, "/mesh")
    with Endpoint() as endpoint, endpoint.subscribe("tests/") as subscriber:
        endpoint.peer(host, int(port))

        def published() -> bool:
            page.get_by_label("Topic to publish to").fill("tests/one")
            page.get_by_label("Value to publish").fill('{"text": "<i>hello</i>"}')
            page.get_by_role("button", name="Publish", exact=True).click()
            confirm(page, "Publish it", "Nothing is lost.", "subscribed to tests/one")
            expect(page.get_by_text("is on its way")).to_be_visible()
            return subscriber.get(timeout=1.0) is not None

        until(published)
    page.get_by_label("Value to publish").fill("{broken")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("This begins like JSON, and is none")).to_be_visible()


def test_what_cannot_be_is_refused_before_anybody_is_asked() -> None:
    leases = Leases()
    changes = DashboardChanges(None, Producer, None, Entries(None, {}, leases))
    plans: list[Callable[[], object]] = [
        lambda: changes.write("", "", "x"),
        lambda: changes.trim("none", None),
        lambda: changes.reset("../../etc", "earliest"),
        lambda: changes.set("map", "m", "", "x"),
        lambda: changes.clear("chain", "c"),
        lambda: changes.publish("t", "x"),
    ]
    for plan in plans:
        with pytest.raises(UsageError):
            plan()
    leases.close()
