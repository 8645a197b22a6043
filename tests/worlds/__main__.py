"""``python -m tests.worlds``: plays seeded worlds and says which promises they broke."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tests.worlds.registry import SCENARIOS
from tests.worlds.shrink import from_json, keep, shrink, to_json

from chappe.sim.world import Outcome, Settings

KEPT: Final = Path("tests/seeds")


def _seeds(text: str) -> range:
    """``200`` is 0 to 199; ``100-199`` is what it says."""
    first, dash, last = text.partition("-")
    try:
        seeds = range(int(first), int(last) + 1) if dash else range(int(first))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of seeds nor FROM-TO") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} has no seeds in it")
    return seeds


def _settings(text: str) -> Settings:
    try:
        return from_json(json.loads(text))
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} are not settings: {error}") from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.worlds",
        description="Plays the cores of chappe in seeded worlds with crashes, cut links and bad disks, and checks "
        "their promises. The same seed plays the same world.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="scenarios:\n" + "\n".join(f"  {name:10} {_brief(name)}" for name in SCENARIOS),
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play one world")
    which.add_argument("--seeds", type=_seeds, metavar="COUNT|FROM-TO", help="play many worlds (default: 200)")
    parser.add_argument("--scenario", choices=list(SCENARIOS), help="what is played (default: every scenario)")
    parser.add_argument("--minutes", type=float, help="virtual minutes with faults (default: some seconds)")
    parser.add_argument("--settings", type=_settings, default=Settings(), help="of a world that was shrunk, as JSON")
    parser.add_argument("--shrink", action="store_true", help=f"make the world smaller, and keep it under {KEPT}")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell everything that happens in the world")
    return parser


def _brief(name: str) -> str:
    return (SCENARIOS[name].__doc__ or "").partition("\n")[0]


def _again(name: str, seed: int, settings: Settings) -> str:
    found = to_json(settings)
    minutes = found.pop("minutes", None)
    more = "" if minutes is None else f" --minutes {minutes:g}"
    more += f" --settings '{json.dumps(found)}'" if found else ""
    return f"python -m tests.worlds --scenario {name} --seed {seed}{more} -v"


def _one(name: str, seed: int, settings: Settings, verbose: bool) -> int:
    outcome = SCENARIOS[name](seed, settings, print if verbose else None).play()
    if outcome.failure is not None:
        print(f"{name} seed {seed} failed after {outcome.virtual_s:.1f} virtual seconds: {outcome.failure}")
        print(outcome.detail, end="")
        return 1
    print(
        f"{name} seed {seed} passed: {outcome.records} records and {outcome.events} events in "
        f"{outcome.virtual_s:.1f} virtual seconds, settled {outcome.settle_s:.1f} s after the last fault"
    )
    return 0


def _shrink(name: str, seed: int, settings: Settings) -> int:
    settings, outcome = shrink(SCENARIOS[name], seed, settings)
    if outcome.failure is None:
        print(f"{name} seed {seed} breaks no promise: there is nothing to shrink")
        return 2
    print(f"{outcome.events} events are left: {outcome.failure}")
    print(f"replay with: {_again(name, seed, settings)}")
    if KEPT.is_dir():
        print(f"kept in {keep(KEPT, name, seed, settings, outcome.failure)}; say there why it failed")
    return 1


def _many(names: list[str], seeds: range, settings: Settings) -> int:
    console = Console(stderr=True)
    failed: list[tuple[str, Outcome]] = []
    events = 0
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("worlds", total=len(seeds) * len(names))
        for seed in seeds:
            for name in names:
                outcome = SCENARIOS[name](seed, settings, None).play()
                events += outcome.events
                if outcome.failure is not None:
                    failed.append((name, outcome))
                    text = f"{name} seed {seed}: {outcome.failure}"
                    progress.console.print(text, markup=False, highlight=False)
                progress.advance(task)
    took_s = time.perf_counter() - began
    played = len(seeds) * len(names)
    for name, outcome in failed:
        print(f"replay with: {_again(name, outcome.seed, settings)}")
    print(
        f"{played - len(failed)} passed, {len(failed)} failed "
        f"({played / took_s:.1f} worlds/s, {events / took_s:,.0f} events/s)"
    )
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if every promise was kept."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = list(SCENARIOS) if options.scenario is None else [options.scenario]
    if not options.verbose:
        logging.getLogger("chappe").setLevel(logging.CRITICAL + 1)  # members say what happens to them
    settings: Settings = options.settings
    if options.minutes is not None:
        settings = Settings(**vars(settings) | {"minutes": options.minutes})
    if options.shrink and (options.seed is None or options.scenario is None):
        parser.error("one world at a time can be shrunk: give --scenario NAME and --seed N")
    if options.shrink:
        return _shrink(options.scenario, options.seed, settings)
    if options.seed is not None:
        return max(_one(name, options.seed, settings, options.verbose) for name in names)
    if options.verbose:
        parser.error("one world at a time can be told: give --seed N")
    return _many(names, options.seeds or range(200), settings)


if __name__ == "__main__":
    sys.exit(main())
