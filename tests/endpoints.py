"""Endpoints for tests, and waiting for what becomes of them."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.waiting import until as until

from chappe import DataStore, Endpoint
from chappe.mesh.actions import Deliver
from chappe.mesh.messages import Message

Make = Callable[..., Endpoint]


def endpoint_of(store: DataStore) -> Endpoint:
    """Where a store is attached."""
    assert isinstance(store.endpoint, Endpoint)
    return store.endpoint


def deliver(store: DataStore, subscriber: int, message: Message) -> None:
    """Hand a message to a data store, as if it had come from a peer."""
    node = endpoint_of(store).node
    node.call(lambda now: [Deliver(subscriber, [message])])


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
    gc.collect()
    until(lambda: _descriptors() <= descriptors, _descriptors)  # a thread of before may look into a file just now


def _descriptors() -> set[str]:
    """Those of this process, where the system tells."""
    if not os.path.exists("/proc/self/fd"):
        return set()
    return {each for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")}
