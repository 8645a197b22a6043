"""``python -m chappe.sim``: plays seeded worlds and says which promises they broke."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chappe.sim.mesh.run import play_mesh
from chappe.sim.replicas.channels import play_channel
from chappe.sim.replicas.run import play_store
from chappe.sim.run import Outcome, play

Play = Callable[..., Outcome]
WORLDS: Final[dict[str, Play]] = {"log": play, "mesh": play_mesh, "store": play_store, "channel": play_channel}


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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m chappe.sim",
        description="Plays the cores of chappe in seeded worlds with crashes, cut links and bad disks, and checks "
        "their promises. The same seed plays the same world.",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--seed", type=int, help="play one world")
    which.add_argument("--seeds", type=_seeds, metavar="COUNT|FROM-TO", help="play many worlds (default: 200)")
    parser.add_argument("--world", choices=[*WORLDS, "all"], default="log", help="what is played (default: log)")
    parser.add_argument("--minutes", type=float, help="virtual minutes with faults (default: some seconds)")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell everything that happens in the world")
    return parser


def _one(world: str, seed: int, minutes: float | None, verbose: bool) -> int:
    outcome = WORLDS[world](seed, minutes=minutes, tell=print if verbose else None)
    if outcome.failure is not None:
        print(f"{world} seed {seed} failed after {outcome.virtual_s:.1f} virtual seconds: {outcome.failure}")
        print(outcome.detail, end="")
        return 1
    print(
        f"{world} seed {seed} passed: {outcome.records} records and {outcome.events} events in "
        f"{outcome.virtual_s:.1f} virtual seconds, settled {outcome.settle_s:.1f} s after the last fault"
    )
    return 0


def _many(worlds: list[str], seeds: range, minutes: float | None) -> int:
    console = Console(stderr=True)
    failed: list[tuple[str, Outcome]] = []
    events = 0
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("worlds", total=len(seeds) * len(worlds))
        for seed in seeds:
            for world in worlds:
                outcome = WORLDS[world](seed, minutes=minutes)
                events += outcome.events
                if outcome.failure is not None:
                    failed.append((world, outcome))
                    text = f"{world} seed {seed}: {outcome.failure}"
                    progress.console.print(text, markup=False, highlight=False)
                progress.advance(task)
    took_s = time.perf_counter() - began
    played = len(seeds) * len(worlds)
    again = "" if minutes is None else f" --minutes {minutes:g}"
    for world, outcome in failed:
        print(f"replay with: python -m chappe.sim --world {world} --seed {outcome.seed}{again} -v")
    print(
        f"{played - len(failed)} passed, {len(failed)} failed "
        f"({played / took_s:.1f} worlds/s, {events / took_s:,.0f} events/s)"
    )
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if every promise was kept."""
    options = _parser().parse_args(arguments)
    worlds = list(WORLDS) if options.world == "all" else [options.world]
    if options.seed is not None:
        return max(_one(world, options.seed, options.minutes, options.verbose) for world in worlds)
    if options.verbose:
        print("one world at a time can be told: give --seed N", file=sys.stderr)
        return 2
    return _many(worlds, options.seeds or range(200), options.minutes)


if __name__ == "__main__":
    sys.exit(main())
