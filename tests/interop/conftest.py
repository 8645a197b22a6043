"""Fixtures of the tests against the original C programs, which are skipped where these are absent."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.interop.network import Network
from tests.interop.originals import VARIABLE, find_programs


@pytest.fixture(scope="session")
def programs() -> Path:
    found = find_programs()
    if found is None:
        pytest.skip(f"the original C programs are not here: set {VARIABLE} to their bin directory to run these tests")
    return found


@pytest.fixture
def bare(programs: Path, tmp_path: Path) -> Iterator[Network]:
    """A network without a tower."""
    with ExitStack() as stack:
        yield Network(programs, tmp_path, stack)


@pytest.fixture
def network(bare: Network) -> Network:
    """A network around our tower."""
    bare.start_tower()
    return bare


@pytest.fixture
def topic() -> str:
    """A topic of this test's own: a port of an earlier test's member may be taken over by a stranger."""
    return "t" + uuid.uuid4().hex[:8]
