"""What runs in a child process of the demo: ``python -m chappe.cli.demo.child ROLE PARENT ...``.

Roles: ``log DIRECTORY ADDRESS`` is a store and a tower, at the address if it is free; ``feed TOWER TOPIC DIRECTORY
[FILE|-]`` is the producer. Facts for the parent go to standard output, one JSON object a line; what goes wrong goes to
standard error. A child ends on SIGTERM, and when its parent is gone; Ctrl-C is for the parent alone to obey.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from chappe.cli.console import hear_warnings, obey_sigterm, say
from chappe.cli.demo.feed import Stop, feed_lines, feed_measurements, finish, teller
from chappe.errors import ChappeError

if TYPE_CHECKING:
    from chappe import Tower

LOOK_S: Final = 0.5
PR_SET_PDEATHSIG: Final = 1


def main(arguments: list[str]) -> int:
    """Play one role until told to stop; returns the exit code."""
    role, parent, rest = arguments[0], int(arguments[1]), arguments[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    obey_sigterm()
    _end_with(parent)
    try:
        if role == "log":
            _log(*rest)
        else:
            _feed(*rest)
    except KeyboardInterrupt:
        return 0
    except (ChappeError, OSError) as error:
        say(str(error))
        return 1
    return 0


def _end_with(parent: int) -> None:
    """End this process when its parent does, even by kill -9."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    def watch() -> None:  # elsewhere, and for a parent that died before prctl
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="chappe parent watch", daemon=True).start()


def _log(directory: str, address: str) -> None:
    from chappe import Store

    tell = teller(sys.stdout)
    hear_warnings("127.0.0.1")
    with _tower(address) as tower, Store(directory, tower=tower.address) as store:
        tell(tower=tower.address, endpoint=store.endpoint, store=store.store_id)
        while True:
            time.sleep(LOOK_S)


def _tower(address: str) -> Tower:
    """A tower where other commands look for one, if that is free and on this machine; else at any port."""
    from chappe import Tower

    if address.startswith(("127.", "localhost:")):
        with suppress(ChappeError):
            return Tower(address)
    return Tower("127.0.0.1:0")


def _feed(tower: str, topic: str, directory: str, file: str | None = None) -> None:
    from chappe import Producer

    tell = teller(sys.stdout)
    hear_warnings(tower)
    stop = Stop()
    with Producer(topic, tower=tower, identity=f"{topic}-feed", directory=directory) as producer:
        tell(partition=producer.partition, first=producer.next_offset)
        try:
            if file is None:
                feed_measurements(producer, tell, stop)
            elif file == "-":
                feed_lines(producer, sys.stdin.fileno(), False, tell, stop)
            else:
                with open(file, "rb", buffering=0) as source:
                    feed_lines(producer, source.fileno(), True, tell, stop)
            while True:  # the producer stays, for those who have not everything yet
                with stop.waiting():
                    time.sleep(LOOK_S)
        except KeyboardInterrupt:
            finish(producer, tell)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
