"""Stands in for ``chappe``: a zygote (``tests/zygote.py``) runs it. Started without site packages, to be quick."""

import json
import os
import signal
import socket
import sys

calling = socket.socket(socket.AF_UNIX)
calling.connect(os.environ["TESTS_ZYGOTE"])
raw = json.dumps([os.getcwd(), dict(os.environ), sys.argv[1:]]).encode()
socket.send_fds(calling, [len(raw).to_bytes(4, "little")], [0, 1, 2])
calling.sendall(raw)
pid = int.from_bytes(calling.recv(8), "little")
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    if signal.getsignal(number) is not signal.SIG_IGN:
        signal.signal(number, lambda given, _: os.kill(pid, given))
ended = calling.recv(4)
if not ended:
    sys.exit("the zygote is gone")
code = int.from_bytes(ended, "little", signed=True)
if code < 0:
    signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
os._exit(code)
