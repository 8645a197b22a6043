"""Endpoints for tests, and waiting for what becomes of them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

from chappe import DataStore, Endpoint
from chappe.core import Deliver
from chappe.mesh.messages import Message
from chappe.system.machine import doubled

Make = Callable[..., Endpoint]


def endpoint_of(store: DataStore) -> Endpoint:
    """Where a store is attached."""
    assert isinstance(store.endpoint, Endpoint)
    return store.endpoint


def deliver(store: DataStore, subscriber: int, message: Message) -> None:
    """Hand a message to a data store, as if it had come from a peer."""
    node = endpoint_of(store).node
    with node.lock:
        node.do([Deliver(subscriber, [message])])


def event(watching: Any, kind: type) -> Any:
    """The next event of a kind that a watch, or a subscriber, gets."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        found = watching.get(deadline - time.monotonic())
        if isinstance(found, kind):
            return found
    raise AssertionError(f"no {kind.__name__} came")


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes endpoints that are closed at the end; nothing of them may be left."""
    descriptors = _descriptors()
    threads = set(threading.enumerate())
    with ExitStack() as stack:
        yield lambda **options: stack.enter_context(Endpoint(**options))
    until(lambda: set(threading.enumerate()) <= threads, threading.enumerate)
    # A thread of before may look into a file just now, or hold for a moment longer what an interrupt has left.
    until(lambda: not _left(descriptors), lambda: {each: _what(each) for each in _left(descriptors)})


def _descriptors() -> set[str]:
    """Those of this process, where the system tells."""
    if not os.path.exists("/proc/self/fd"):
        return set()
    return {each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")}


def _left(before: set[str]) -> set[str]:
    """Those that are new, but for what a Spark session of another test opens to tell Java what was collected here."""
    pyspark = sys.modules.get("pyspark")
    gateway = None if pyspark is None else pyspark.SparkContext._gateway
    port = None if gateway is None else gateway.gateway_parameters.port
    gc.collect()
    return {each for each in _descriptors() - before if port is None or _peer(each) != port}


def _peer(descriptor: str) -> int | None:
    """The port at the other end of a connection."""
    try:
        with doubled(int(descriptor)) as found:
            return int(found.getpeername()[1])
    except (OSError, IndexError, ValueError):
        return None


def _what(descriptor: str) -> str:
    try:
        return f"{os.readlink(f'/proc/self/fd/{descriptor}')}, to port {_peer(descriptor)}"
    except OSError:
        return "gone by now"
