"""Closing many sockets that have much to send, while those that it is for close theirs, ends no process."""

from __future__ import annotations

import subprocess
import sys

import pytest

CROWD = 24  # of them each sends to each
PROGRAM = f"""
import os
import time
import zmq
from chappe.transports.zeromq import PublishingSocket
from chappe.transports.zeromq import open_socket

publishers = [PublishingSocket(1.0) for _ in range({CROWD})]
ports = [each.socket.bind_to_random_port("tcp://127.0.0.1") for each in publishers]
subscribers = [open_socket(zmq.SUB) for _ in range({CROWD})]
for each in subscribers:
    each.subscribe(b"")
    for port in ports:
        each.connect(f"tcp://127.0.0.1:{{port}}")
for each in publishers:
    for _ in subscribers:
        each.subscription(each.socket.recv_multipart(copy=False))
    for _ in range(400):
        each.send([bytes(100)] * 3)
for each in publishers:
    each.socket.close()
for each in subscribers:
    each.close()
# The thread behind the sockets is at work meanwhile, or has been.
one, other = zmq.Context.instance().socket(zmq.PAIR), zmq.Context.instance().socket(zmq.PAIR)
other.connect(f"tcp://127.0.0.1:{{one.bind_to_random_port('tcp://127.0.0.1')}}")
until = time.monotonic() + 0.3
while time.monotonic() < until:
    one.send(b"")
    other.recv()
    other.send(b"")
    one.recv()
os.write(1, b"went on")
"""


@pytest.mark.process
def test_a_process_goes_on() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, b"went on"), ended.stderr.decode()
