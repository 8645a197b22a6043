"""How old messages are, in processes of which one is stopped while a message passes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.endpoints import Make, until

from chappe.mesh.events import PeerLost

pytestmark = [pytest.mark.process, pytest.mark.skipif(os.name == "nt", reason="nobody can be stopped there")]

FORWARDER = """
import sys
from chappe import Endpoint
with Endpoint() as endpoint:
    print(endpoint.listen(), flush=True)
    sys.stdin.read()
"""
PUBLISHER = """
import sys
from chappe import Endpoint
with Endpoint() as endpoint:
    endpoint.peer("127.0.0.1", int(sys.argv[1]))
    for line in sys.stdin:
        print(endpoint.publish("t", int(line)), flush=True)
"""
STOPPED_S = 2.0


@contextmanager
def program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


def publish(process: subprocess.Popen[str], number: int) -> int:
    assert process.stdin is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()
    return line_of(process)


def test_a_message_that_lay_at_a_stopped_forwarder_is_too_old(make: Make) -> None:
    """It is tried again where a busy machine took so long that the stopped one was given up.

    Or that it had not read the publisher's clock, or not well: then age counts from there, or is known to be no less.
    """
    here = make()
    with program(FORWARDER) as forwarder, program(PUBLISHER, port := line_of(forwarder)) as publisher:
        here.peer("127.0.0.1", port)
        aged = here.subscribe("t", max_age_s=STOPPED_S / 2, on_stale="drop")
        plain = here.subscribe("t")
        until(lambda: publish(publisher, 0) and plain.poll())
        statuses = here.statuses()
        for number in range(1, 30):
            aged.poll()
            before = aged.dropped
            forwarder.send_signal(signal.SIGSTOP)
            publish(publisher, number)
            stopped_at = time.monotonic()
            until(lambda: time.monotonic() >= stopped_at + STOPPED_S)  # noqa: B023
            forwarder.send_signal(signal.SIGCONT)
            until(lambda: publish(publisher, 0))
            got = [each.value for each in plain.get_many(100, 1.0)]
            if number in got and not any(isinstance(each, PeerLost) for each in statuses.poll()):
                if number in [each.value for each in aged.poll()]:
                    continue
                assert aged.dropped > before
                return
        raise AssertionError("nothing ever passed, or nothing was too old")
