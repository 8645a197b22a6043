"""A master on a chain in a process of its own: for every line it says what it knows, or has."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

PATIENCE_S: Final = 300.0  # this also runs where there is no package of tests


class Link:
    """One server of a chain; ``port`` is where its endpoint listens."""

    def __init__(self, port: int, chain: str, server: str, directory: str) -> None:
        self.port = port
        self.server = server
        options = {"chain": chain, "server": server, "directory": directory}
        self.arguments = [str(port), json.dumps(options)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "it did not start: see what it wrote"

    def ask(self, what: str) -> Any:
        """Have it answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)

    def chain(self) -> dict[str, Any]:
        """What it knows of the chain."""
        return self.ask("chain")  # type: ignore[no-any-return]


if __name__ == "__main__":
    from chappe import Endpoint

    options = json.loads(sys.argv[2])
    with Endpoint() as endpoint:
        endpoint.listen(port=int(sys.argv[1]))
        with endpoint.attach_master("s", **options) as store:
            print("ready", flush=True)
            for line in sys.stdin:
                word, _, key = line.strip().partition(" ")
                status = store.chain()
                assert status is not None
                found = store.get(key) if word == "get" else asdict(status)
                print(json.dumps(found), flush=True)
