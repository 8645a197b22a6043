"""Masters of data stores in processes of their own, to be killed."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

from tests.endpoints import PATIENCE_S
from tests.ports import free_ports

MASTER = Path(__file__).with_name("store_master.py")


class Process:
    """A master of the store "s": of SQLite where there is a path, else in memory with ``entries``."""

    def __init__(
        self,
        path: Path | None,
        port: int | None = None,
        *,
        file_bytes_max: int | None = None,
        entries: dict[str, object] | None = None,
    ) -> None:
        def limit() -> None:
            if file_bytes_max is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes_max, resource.RLIM_INFINITY))

        self.process = subprocess.Popen(
            [sys.executable, str(MASTER), str(path or ""), str(port or free_ports()), json.dumps(entries or {})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=limit,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the master did not start: see what it wrote"
        self.port = int(line)

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(PATIENCE_S)
