"""``python -m chappe.sim``: plays seeded worlds and says which promises they broke."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from chappe.sim.run import Outcome, play


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
    parser.add_argument("--minutes", type=float, help="virtual minutes with faults (default: some seconds)")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell everything that happens in the world")
    return parser


def _one(seed: int, minutes: float | None, verbose: bool) -> int:
    outcome = play(seed, minutes=minutes, tell=print if verbose else None)
    if outcome.failure is not None:
        print(f"seed {seed} failed after {outcome.virtual_s:.1f} virtual seconds: {outcome.failure}")
        print(outcome.detail, end="")
        return 1
    print(
        f"seed {seed} passed: {outcome.records} records and {outcome.events} events in {outcome.virtual_s:.1f} "
        f"virtual seconds, settled {outcome.settle_s:.1f} s after the last fault"
    )
    return 0


def _many(seeds: range, minutes: float | None) -> int:
    console = Console(stderr=True)
    failed: list[Outcome] = []
    events = 0
    began = time.perf_counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("seeds", total=len(seeds))
        for seed in seeds:
            outcome = play(seed, minutes=minutes)
            events += outcome.events
            if outcome.failure is not None:
                failed.append(outcome)
                progress.console.print(f"seed {seed}: {outcome.failure}", markup=False, highlight=False)
            progress.advance(task)
    took_s = time.perf_counter() - began
    again = "" if minutes is None else f" --minutes {minutes:g}"
    for outcome in failed:
        print(f"replay with: python -m chappe.sim --seed {outcome.seed}{again} -v")
    print(
        f"{len(seeds) - len(failed)} passed, {len(failed)} failed "
        f"({len(seeds) / took_s:.1f} seeds/s, {events / took_s:,.0f} events/s)"
    )
    return 1 if failed else 0


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code: 0 if every promise was kept."""
    options = _parser().parse_args(arguments)
    if options.seed is not None:
        return _one(options.seed, options.minutes, options.verbose)
    if options.verbose:
        print("one world at a time can be told: give --seed N", file=sys.stderr)
        return 2
    return _many(options.seeds or range(200), options.minutes)


if __name__ == "__main__":
    sys.exit(main())
