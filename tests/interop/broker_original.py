"""An endpoint of the original Broker in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

VARIABLE = "CHAPPE_BROKER"  # the directory where the module ``broker`` of the original's Python bindings lies
DRIVER = Path(__file__).with_name("broker_driver.py")
END_S = 60.0  # then it is killed


def find_bindings() -> Path | None:
    """The directory of the original's bindings, if it is given and they can be used by this Python."""
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    check = [sys.executable, "-c", "import broker; broker.Endpoint"]
    done = subprocess.run(check, env=_environment(Path(named)), capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{VARIABLE} is {named}, but the bindings do not work: {done.stderr.decode()[-300:]}")
    return Path(named)


def _environment(bindings: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("BROKER_")}
    return {**kept, "PYTHONPATH": str(bindings)}


class Original:
    """One endpoint; its methods are those of the driver. Ends with its context."""

    def __init__(self, bindings: Path, options: dict[str, Any], driver: Path = DRIVER) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(driver)],
            env=_environment(bindings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._say(options)

    def __enter__(self) -> Original:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: object) -> Any:
            self._say([name, *arguments])
            assert self._process.stdout is not None
            line = self._process.stdout.readline()
            assert line, f"the original ended during {name}{arguments}"
            return json.loads(line)

        return call

    def end(self) -> None:
        """Shut down as a program that ends well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End at once."""
        self._process.kill()
        self._process.wait()

    def _say(self, thing: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(thing) + "\n")
        self._process.stdin.flush()
