"""Plants one fault after the other into a copy of the sources, and looks whether simulated worlds and tests notice.

    python -m tests.mutations                   all of them, worlds only; some hours of processor time at most
    python -m tests.mutations PART NAME ...     those of some parts, and some more
    python -m tests.mutations --tests           the tests of each part, too
    python -m tests.mutations --found FILE      go on where a file says that an earlier run was, and write it there
    python -m tests.mutations --found FILE --table   what that file has found, as Markdown

Worlds alone are to notice whatever breaks a promise. A world that takes too much processor time counts as failed; so do
all tests of a fault.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tests.mutations.plants import PLANTS, SCENARIOS, Plant

PROJECT = Path(__file__).parent.parent.parent
SOURCE = PROJECT / "src"
WORLDS = 300
WORLD_S = 120  # of processor time: a fault that makes a world go on for ever is noticed
TESTS_S = 1800  # the same of all tests of a fault
NOBODY = "nobody"
_PLAY = """
import signal, sys
from tests.worlds.registry import SCENARIOS
def hangs(*_):
    sys.exit(f"{sys.argv[1]} {seed}: does not end")
signal.signal(signal.SIGPROF, hangs)
for seed in range(int(sys.argv[2]), int(sys.argv[3])):
    signal.setitimer(signal.ITIMER_PROF, float(sys.argv[4]))
    failure = SCENARIOS[sys.argv[1]](seed).play().failure
    if failure is not None:
        sys.exit(f"{sys.argv[1]} {seed}: {failure}")
"""
_TEST = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""


@dataclass(frozen=True)
class Found:
    """Who noticed a fault.

    Args:
        name: Of the fault.
        played: Worlds of each scenario that were played, unless one failed before.
        world: The first that failed, and how.
        test: The first test that failed; ``NOBODY`` if none did, empty if none was run.
    """

    name: str
    played: int = 0
    world: str = ""
    test: str = ""


def try_out(plant: Plant, found: Found, worlds: int, tests: bool) -> Found:
    """Plant one fault, and look for it, beyond what was done before."""
    with tempfile.TemporaryDirectory(prefix="chappe-mutation-") as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCE, copy, ignore=shutil.ignore_patterns("__pycache__"))
        plant.into(copy)
        environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
        for scenario in plant.scenarios if found.played < worlds and not found.world else ():
            command = [sys.executable, "-c", _PLAY, scenario, str(found.played), str(worlds), str(WORLD_S)]
            world = _last_line(_run(command, environment))
            if world:
                found = replace(found, world=world)
                break
        if not found.world:
            found = replace(found, played=max(worlds, found.played))
        if tests and not found.test:
            found = replace(found, test=_tests(plant.tests, environment, Path(folder)) or NOBODY)
    return found


def _tests(paths: Sequence[str], environment: dict[str, str], folder: Path) -> str:
    command = [sys.executable, "-c", _TEST, str(TESTS_S), "-x", "-q", "-p", "no:cacheprovider", "-m", "not process"]
    text = _run([*command, f"--basetemp={folder / 'tmp'}", *paths], environment)
    first = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    return first[1] if first else _last_line(text)


def _run(command: list[str], environment: dict[str, str]) -> str:
    """What a command that fails has to say; empty if it does not fail."""
    done = subprocess.run(command, env=environment, cwd=PROJECT, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip() or f"ended with {done.returncode}" if done.returncode else ""


def _last_line(text: str) -> str:
    return text.splitlines()[-1][:160] if text else ""


def table(found: Iterable[Found]) -> str:
    """What was found, in Markdown."""
    known = {each.name: each for each in found}
    plants = [each for each in PLANTS if each.name in known]
    counts = [
        "| part | planted | seen by worlds | else by tests | break a promise | of these seen by worlds |",
        "|---|---|---|---|---|---|",
    ]
    for part in (*SCENARIOS, "all"):
        rows = [each for each in plants if part in (each.part, "all")]
        broken = [each for each in rows if each.breaks]
        seen, seen_broken = (sum([bool(known[each.name].world) for each in some]) for some in (rows, broken))
        tested = sum([not known[each.name].world and known[each.name].test not in ("", NOBODY) for each in rows])
        counts.append(f"| {part} | {len(rows)} | {seen} | {tested} | {len(broken)} | {seen_broken} |")
    lines = ["| fault | part | breaks | worlds | tests |", "|---|---|---|---|---|"]
    for plant in plants:
        each = known[plant.name]
        world = ", ".join(each.world.split(": ")[:2]) or f"none of {each.played}"
        test = each.test.rpartition("/")[2].partition("[")[0].replace("::", ", ") or "not run"
        lines.append(f"| {plant.name} | {plant.part} | {plant.breaks or '—'} | {world} | {test} |")
    return "\n".join([*counts, "", *lines])


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if worlds noticed whatever breaks a promise, and worlds or tests each other fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="PART|NAME", help="some faults only")
    parser.add_argument("--worlds", type=int, default=WORLDS, help="of each scenario (default: %(default)s)")
    parser.add_argument("--tests", action="store_true", help="run the tests, too")
    parser.add_argument("--found", type=Path, metavar="FILE", help="what earlier runs found; it is kept up to date")
    parser.add_argument("--table", action="store_true", help="only show what was found")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - {each.name for each in PLANTS} - set(SCENARIOS)
    if unknown:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    found: dict[str, Found] = {}
    if options.found and options.found.exists():
        found = {each["name"]: Found(**each) for each in json.loads(options.found.read_text(encoding="utf-8"))}
    for plant in PLANTS if not options.table else ():
        if options.names and not {plant.name, plant.part} & set(options.names):
            continue
        known = found.get(plant.name, Found(plant.name))
        if (known.world or known.played >= options.worlds) and (known.test or not options.tests):
            continue
        each = found[plant.name] = try_out(plant, known, options.worlds, options.tests)
        print(
            f"{each.name}: {each.world or NOBODY}{f'; {each.test}' if each.test else ''}", file=sys.stderr, flush=True
        )
        if options.found:
            rows = [asdict(found[plant.name]) for plant in PLANTS if plant.name in found]
            options.found.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(found.values()))
    return 0 if all(found[each.name].world or (not each.breaks and found[each.name].test not in ("", NOBODY))
                    for each in PLANTS if each.name in found) else 1  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
