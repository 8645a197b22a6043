"""Sockets are looked at by their descriptors, and nothing of what has such a number by now is kept."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from chappe.system.machine import doubled


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_socket_is_looked_at_and_stays_open() -> None:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        before = descriptors()
        with doubled(there.fileno()) as found:
            assert found.getsockname() == there.getsockname()
        assert descriptors() <= before
        there.listen()


def test_what_is_no_socket_any_more_is_an_error_and_not_kept(tmp_path: Path) -> None:
    before = descriptors()
    with (tmp_path / "file").open("w") as file, pytest.raises(OSError, match="non-socket"), doubled(file.fileno()):
        raise AssertionError("it is a file")
    with pytest.raises(OSError, match="Bad file"), doubled(10_000):
        raise AssertionError("there is none")
    assert descriptors() <= before
