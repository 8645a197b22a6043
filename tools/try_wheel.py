"""Install wheels in new environments, with each extra alone and all together, and see that they work in each.

    python -m tools.try_wheel dist/chappe-0.1.0-py3-none-any.whl                all extras, with this Python
    python -m tools.try_wheel dist/*.whl --python python3.12 --python python3.13
    python -m tools.try_wheel dist/*.whl --extra '' --extra arrow               only these; '' is none

In each: what the extra is for is imported, `chappe --version` names what is there and says whether the wheel is a
compiled one, and `chappe doctor` finds nothing that fails. Environments are made in a directory that is removed; with
all extras it takes some minutes for each Python.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
INSTALL_S: Final = 1800
RUN_S: Final = 300
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check")
ALL: Final = "all"
# What each extra is for: importing it must work once the extra is there.
FOR: Final = {
    "": "import chappe; [getattr(chappe, each) for each in chappe.__all__]",
    "arrow": "import chappe.arrow, chappe.columns; chappe.arrow.schema(); chappe.columns.reader()",
    "pandas": "import pandas, chappe.arrow; chappe.arrow.schema()",
    "demo": "import psutil, chappe.cli.demo",
    "metrics": "import prometheus_client, chappe.cli.metrics",
    "tls": "import blake3, cryptography, chappe.sealing.primitives",
    "dashboard": "import pyarrow, chappe.dashboard.server",
    "avro": "import fastavro; from chappe import Avro; Avro('\"int\"')",
    "protobuf": "import chappe.schemas.protobuf",
    "schemas": "import chappe.web.schemas, chappe.schemas.json_schema, chappe.schemas.protobuf, fastavro, jsonschema",
    "tracing": "import opentelemetry.propagate, chappe.api.tracing",
    "web": "import chappe.web.server",
    "spark": "import pyspark, chappe.spark, pyspark_chappe",
    "rocksdb": "import rocksdict",
    "connect": "import grpc, pyspark.sql.connect.session",
}


def main(arguments: list[str]) -> int:
    """Try what is asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.try_wheel", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="+")
    parser.add_argument("--python", action="append", metavar="PYTHON", help="an interpreter; this one by default")
    parser.add_argument(
        "--extra", action="append", metavar="EXTRA", help="each alone; all, and all together, by default"
    )
    asked = parser.parse_args(arguments)
    extras = asked.extra if asked.extra is not None else ["", *all_extras(), ALL]
    failed = 0
    for wheel, python, extra in product(asked.wheel, asked.python or [sys.executable], extras):
        began = time.monotonic()
        problem = try_one(python, wheel.absolute(), extra)
        failed += bool(problem)
        took = f"{time.monotonic() - began:.0f} s"
        print(f"{wheel.name}, {python} {extra or 'without extras'}: {problem or 'ok'} ({took})", flush=True)
    return 1 if failed else 0


def all_extras() -> list[str]:
    """As pyproject.toml names them, without the one that is all of them."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        return [each for each in tomllib.load(file)["project"]["optional-dependencies"] if each != "all"]


def try_one(python: str, wheel: Path, extra: str) -> str:
    """What is wrong with the wheel and one extra in a new environment; empty if nothing is."""
    names = all_extras() if extra == ALL else [extra] if extra else []
    with tempfile.TemporaryDirectory() as directory:
        bin_ = Path(directory) / "env" / "bin"
        wanted = f"{wheel}[{','.join(names)}]" if names else str(wheel)
        env = {name: value for name, value in os.environ.items() if not name.startswith(("CHAPPE_", "PYTHON"))}
        away = env | {"HOME": directory, "XDG_STATE_HOME": directory}  # of a user who has nothing yet; pip has its own
        pip = [*PIP, "--python", str(bin_ / "python"), "install", "--quiet", "--no-compile", wanted]
        steps = [
            ([python, "-m", "venv", "--without-pip", str(bin_.parent)], INSTALL_S, env),
            (pip, INSTALL_S, env),
            *(([str(bin_ / "python"), "-c", FOR[each]], RUN_S, away) for each in ("", *names)),
            ([str(bin_ / "chappe"), "--version"], RUN_S, away),
            ([str(bin_ / "chappe"), "doctor", directory, "--tower", f"127.0.0.1:{quiet_port()}"], RUN_S, away),
        ]
        for command, timeout, env in steps:
            try:
                done = subprocess.run(
                    command, env=env, cwd=directory, capture_output=True, text=True, timeout=timeout, check=False
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                return str(error)
            if done.returncode:
                text = (done.stderr or done.stdout).strip().splitlines()
                said = [each for each in text if each.startswith("failed")] or text[-3:]
                return f"{' '.join(command[-2:])} ended with {done.returncode}: {' / '.join(said)}"
            if command[-1] == "--version" and ("Python alone" in done.stdout) != wheel.name.endswith("-any.whl"):
                return f"it says of itself: {done.stdout}"
    return ""


def quiet_port() -> int:
    """One at which nothing listens, and nothing at the next one; not where the system takes ports from by itself."""
    while True:
        port = random.randrange(10_240, 30_000)
        with socket.socket() as one, socket.socket() as two, suppress(OSError):
            one.bind(("127.0.0.1", port))
            two.bind(("127.0.0.1", port + 1))
            return port


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
