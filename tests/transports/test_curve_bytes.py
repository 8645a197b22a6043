"""CURVE's bytes (RFC 26, over ZMTP 3.1, RFC 37) at a socket of ours: what it says, and what it takes from raw sockets.

The rest of the handshake is libzmq's at both ends; ``test_gate.py`` has its own program as the other one, both ways.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from tests.waiting import PATIENCE_S, until

from chappe.api import permissions
from chappe.security import Keys
from chappe.storage.key_files import curve_keys
from chappe.transports.addresses import bind
from chappe.transports.gate import Gate, gate_of
from chappe.transports.zeromq import open_socket

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"
# signature (its padding is anybody's), version 3.1, mechanism, as-server, filler
SERVER = b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)
CLIENT = b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\x00" + bytes(31)
HELLO_SIZE = 200
HELLO = b"\x05HELLO\x01\x00" + bytes(72)  # then key, nonce, and a signature box of 64 zeros


def hello(version: bytes = b"\x01\x00", padding: bytes = bytes(72), box: bytes | None = None) -> bytes:
    """A HELLO whose box nobody can open: it would take a key of the server's."""
    made = b"\x05HELLO" + version + padding + os.urandom(32) + (1).to_bytes(8) + (box or os.urandom(80))
    return b"\x04" + bytes([len(made)]) + made


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def home(tmp_path: Path) -> Path:
    permissions.init(tmp_path / "keys", "hub", "server")
    permissions.add(tmp_path / "keys", "sensor", "producer")
    return tmp_path / "keys"


def gate(home: Path, name: str) -> Gate:
    found = gate_of(Keys(home / name))
    assert found is not None
    return found


def read(connection: socket.socket, size: int) -> bytes:
    """So many bytes, or what came before the end."""
    found = b""
    while len(found) < size:
        try:
            piece = connection.recv(size - len(found))
        except ConnectionError:
            break
        if not piece:
            break
        found += piece
    return found


@pytest.fixture
def server(home: Path, sockets: ExitStack) -> tuple[zmq.Socket[bytes], int]:
    made = open_socket(zmq.XPUB, gate(home, "hub"))
    sockets.callback(made.close)
    return made, bind(made, "127.0.0.1", gate=gate(home, "hub"))


def test_the_greeting_of_a_server_names_curve_and_nothing_else(server: tuple[zmq.Socket[bytes], int]) -> None:
    with socket.create_connection(("127.0.0.1", server[1]), PATIENCE_S) as connection:
        connection.sendall(SIGNATURE + CLIENT)
        said = read(connection, 64)
    assert (said[:1], said[9:10]) == (b"\xff", b"\x7f")
    assert said[10:] == CLIENT  # libzmq leaves out who is the server; each end knows


def test_a_client_begins_with_the_bytes_of_the_rfc_and_its_own_key_is_not_among_them(
    home: Path, sockets: ExitStack
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = open_socket(zmq.SUB, gate(home, "sensor"))
        sockets.callback(client.close)
        client.connect(gate(home, "sensor").dial(client, f"tcp://127.0.0.1:{listening.getsockname()[1]}#hub"))
        connection, _ = listening.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(SIGNATURE + SERVER)
            said = read(connection, 64)
            assert said[10:] == CLIENT
            command = read(connection, 2 + HELLO_SIZE)
    assert command[:2] == b"\x04" + bytes([HELLO_SIZE])
    assert command[2 : 2 + len(HELLO)] == HELLO
    assert command[114:122] == (1).to_bytes(8)  # a short nonce, counted from 1
    own = curve_keys(Keys(home / "sensor"))
    assert own.public not in command  # who it is comes later, and encrypted
    assert own.secret not in command


@pytest.mark.parametrize(
    "said",
    [
        pytest.param(SIGNATURE + CLIENT + hello(), id="a box of a key that is not the server's"),
        pytest.param(SIGNATURE + CLIENT + hello(box=bytes(80)), id="an empty box"),
        pytest.param(SIGNATURE + CLIENT + hello(version=b"\x02\x00"), id="another version"),
        pytest.param(SIGNATURE + CLIENT + hello(padding=bytes(8)), id="a HELLO that is cut off"),
        pytest.param(SIGNATURE + CLIENT + b"\x04\x09\x08INITIATE", id="INITIATE first"),
        pytest.param(SIGNATURE + CLIENT + b"\x00\x05\x01news", id="a message before the handshake"),
        pytest.param(SIGNATURE + CLIENT.replace(b"CURVE", b"NULL\0"), id="no keys"),
        pytest.param(SIGNATURE + CLIENT.replace(b"CURVE", b"PLAIN"), id="a password"),
        pytest.param(b"\x01\x00", id="the protocol before the third"),
    ],
)
def test_what_is_no_handshake_ends_without_an_answer(
    server: tuple[zmq.Socket[bytes], int], home: Path, said: bytes
) -> None:
    sock, port = server
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(said)
        answer = read(connection, 1_000)
    assert len(answer) <= 64  # its greeting, and neither WELCOME nor ERROR
    assert b"WELCOME" not in answer
    assert not sock.poll(0)

    client = open_socket(zmq.SUB, gate(home, "sensor"))
    client.setsockopt(zmq.SUBSCRIBE, b"news")
    client.connect(gate(home, "sensor").dial(client, f"tcp://127.0.0.1:{port}#hub"))
    until(lambda: sock.poll(0), "one with keys")
    client.close()
