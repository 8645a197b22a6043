"""One of a pair of masters in a process of its own: says its port, then what it knows of the pair for every line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from typing import Any, Final

PATIENCE_S: Final = 300.0  # this also runs where there is no package of tests


class Half:
    """One of the two, as a process; ``port`` is where its endpoint listens."""

    def __init__(self, port: int, partner: int, role: str, **options: object) -> None:
        self.port = port
        self.role = role
        self.arguments = [str(port), json.dumps({"partner": f"127.0.0.1:{partner}", "role": role, **options})]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, *self.arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline(), "it did not start: see what it wrote"

    def pair(self) -> dict[str, Any]:
        """What it knows of the pair."""
        return self.ask("pair")  # type: ignore[no-any-return]

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


if __name__ == "__main__":
    from chappe import Endpoint

    options = json.loads(sys.argv[2])
    with Endpoint() as endpoint:
        endpoint.listen(port=int(sys.argv[1]))
        with endpoint.attach_master("s", options.pop("backend", "memory"), **options) as store:
            print("ready", flush=True)
            for line in sys.stdin:
                found = store.pair()
                assert found is not None
                word, _, key = line.strip().partition(" ")
                print(json.dumps(asdict(found) if word == "pair" else store.get(key)), flush=True)
