"""Members that were never closed, as Python warns of them."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.waiting import PATIENCE_S

PROGRAM = """
import sys
from chappe import Consumer, Endpoint, MapServer, Producer, SharedMap, Store, Tower
tower = Tower("127.0.0.1:0", security="plain")
store = Store(sys.argv[1], tower=tower.address)
producer = Producer("t", tower=tower.address)
consumer = Consumer("t", tower=tower.address)
endpoint = Endpoint()
server = MapServer("127.0.0.1:0")
shared = SharedMap(server.address)
if "close" in sys.argv:
    for each in (shared, server, endpoint, consumer, producer, store, tower):
        each.close()
"""


@pytest.mark.process
def test_members_that_were_never_closed_are_named_to_who_asks(tmp_path: object) -> None:
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", PROGRAM, f"{tmp_path}/kept"]
    left, closed = (
        subprocess.run([*command, *more], capture_output=True, text=True, timeout=PATIENCE_S, check=True).stderr
        for more in ([], ["close"])
    )
    for kind in ("Tower", "Store", "Producer", "Consumer", "Endpoint", "MapServer", "SharedMap"):
        assert f"ResourceWarning: unclosed <{kind} " in left or f"unclosed <{kind}" in left, (kind, left)
    assert "unclosed <" not in closed
