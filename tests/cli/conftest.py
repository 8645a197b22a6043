"""Commands as real processes, in a directory and an environment of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.waiting import PATIENCE_S as PATIENCE_S
from tests.zygote import SHORT_COMMAND, at_zygote


@dataclass
class Shell:
    """Runs ``chappe`` in ``directory``; ends what it started."""

    directory: Path
    env: dict[str, str]
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        return self.python("-m", "chappe", *arguments)

    def python(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Run Python with these arguments, to be ended as commands are."""
        return self._begin(sys.executable, *arguments, env=self.env)

    def _begin(self, *command: str, env: dict[str, str]) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=self.directory, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        self.running.append(process)
        return process

    def run(
        self, *arguments: str, stdin: bytes = b"", timeout: float = PATIENCE_S
    ) -> subprocess.CompletedProcess[bytes]:
        """Run to the end; no command may ever show a traceback."""
        process = self._begin(sys.executable, "-IS", str(SHORT_COMMAND), *arguments, env=at_zygote(self.env))
        out, err = process.communicate(stdin, timeout)
        assert b"Traceback" not in err, err.decode()
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def up(self, *arguments: str) -> dict[str, Any]:
        """Start a tower and a store; further commands find them."""
        process = self.start("up", "--tower", "127.0.0.1:0", "--json", *arguments)
        assert process.stdout is not None
        facts: dict[str, Any] = json.loads(process.stdout.readline())
        self.env["CHAPPE_TOWER"] = facts["tower"]
        return facts

    def stop(self, process: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> tuple[int, str, str]:
        process.send_signal(how)
        out, err = process.communicate(timeout=PATIENCE_S)
        assert b"Traceback" not in err, err.decode()
        return process.returncode, out.decode(), err.decode()


@contextmanager
def shell_in(directory: Path) -> Iterator[Shell]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("CHAPPE_")}
    home = directory / "home"
    home.mkdir()
    here = directory / "here"
    here.mkdir()
    env |= {
        "HOME": str(home),
        "XDG_STATE_HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "XDG_DATA_HOME": str(home),
        "TERM": "dumb",
    }
    made = Shell(here, env)
    try:
        yield made
    finally:
        for process in made.running:
            if process.poll() is None:
                process.kill()
            process.communicate()


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    with shell_in(tmp_path) as made:
        yield made
