"""Identities that may no more than ask, or answer, as the how-to has their rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
from tests.endpoints import Make, until

from chappe import Endpoint, Keys
from chappe.api import permissions
from chappe.errors import NotPermitted, RequestFailed

PAGE: Final = Path(__file__).parents[2] / "docs" / "how-to" / "ask.md"
EXAMPLE: Final = "232fd6cb-865e-4ddc-b930-ea5d72e3f2e3"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An authority whose hub may everything, and a till and a clerk that have the rules of the page alone."""
    made = tmp_path / "keys"
    permissions.init(made, "hub", "administrator")
    till = permissions.add(made, "till", "member").endpoint
    permissions.add(made, "clerk", "member")
    [rules] = re.findall(r'^```toml title="keys/permissions.toml, in part"\n(.*?)^```', PAGE.read_text(), re.S | re.M)
    assert EXAMPLE in rules
    path = made / "permissions.toml"
    text = path.read_text().replace('"member"]', '"nobody"]')
    path.write_text(text.replace("[[rules]]", rules.replace(EXAMPLE, str(till)) + "\n[[rules]]", 1))
    permissions.sign(path)
    return made


@pytest.fixture
def three(make: Make, home: Path) -> tuple[Endpoint, Endpoint, Endpoint]:
    """Till, hub and clerk, which know each other."""
    till, hub, clerk = (make(security=Keys(home / name)) for name in ("till", "hub", "clerk"))
    port = hub.listen()
    for each in (till, clerk):
        each.peer("127.0.0.1", port)
    assert till.await_peer(clerk.id)
    return till, hub, clerk


def test_the_rules_of_the_page_are_enough_to_ask_and_to_answer(three: tuple[Endpoint, Endpoint, Endpoint]) -> None:
    till, hub, clerk = three
    clerk.respond("price/", lambda request: 3 // request.value, queue="clerks")
    until(lambda: b"price/" in till.core.peer_subscriptions())

    assert till.request("price/apple", 1).value == 3
    with pytest.raises(RequestFailed, match="ZeroDivisionError"):
        till.request("price/apple", 0)
    assert hub.request("price/apple", 3).value == 1
    assert hub.refused == 0


def test_they_are_enough_for_nothing_else(three: tuple[Endpoint, Endpoint, Endpoint]) -> None:
    till, hub, clerk = three
    hub.respond("price/", lambda request: 1)
    with pytest.raises(NotPermitted, match="clerk may not subscribe '<\\$>/inbox/"):
        clerk.request("price/apple", 1)
    with pytest.raises(NotPermitted, match="till may not publish 'wages/'"):
        till.request("wages/", 1)
    with pytest.raises(NotPermitted, match="till may not subscribe 'price/'"):
        till.responder("price/")
    with pytest.raises(NotPermitted, match="clerk may not subscribe '<\\$>/queue/thieves'"):
        clerk.subscribe("price/", queue="thieves")
    assert clerk.node.member.queues.of == {}
    assert clerk.asked == till.asked == {}
