"""Chains: each is asked by one of its clients how every server of it fares. Nothing is read or written."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from shlex import quote
from typing import Final

from chappe import Chain, ChainConfiguration, ChainServerStatus
from chappe.observing.snapshot import HealthProblem, Level, ObservedLink, ObservedMember, ObservedPart, ObservedStore
from chappe.security import LogSecurity

LOOK_S: Final = 1.0  # so long servers are waited for

Statuses = Mapping[str, ChainServerStatus | None]


class ChainSource:
    """Looks at chains. ``files``: of each its configuration, as ``chappe chain serve`` takes it. Raises ConfigError,
    UsageError.
    """

    name = "chains"
    mend = "Start its servers: chappe chain serve FILE --name NAME"

    def __init__(self, files: Sequence[Path], security: LogSecurity = None) -> None:
        self._chains: list[tuple[Path, ChainConfiguration, Chain]] = []
        try:
            for each in files:
                configuration = ChainConfiguration.load(each)
                self._chains.append((each, configuration, Chain(configuration, security=security)))
        except BaseException:
            self.close()
            raise

    def look(self) -> ObservedPart:
        members: list[ObservedMember] = []
        links: list[ObservedLink] = []
        keepings: list[ObservedStore] = []
        problems: list[HealthProblem] = []
        waited_s = 0.0
        for file, configuration, chain in self._chains:
            began = time.monotonic()
            found = chain.status(timeout=LOOK_S)
            if None in found.values():
                waited_s += time.monotonic() - began
            order = order_of(found)
            members += _members(configuration, found)
            links += _links(configuration, found, order)
            ids = tuple(_id(configuration, each) for each in order)
            note = " > ".join(order) or "not founded"
            keepings.append(ObservedStore("chain", configuration.name, ids[:1], ids[1:], None, note))
            problems += _problems(file, configuration, found)
        return ObservedPart(
            tuple(members), tuple(links), keepings=tuple(keepings), problems=tuple(problems), waited_s=waited_s
        )

    def close(self) -> None:
        for _, _, chain in self._chains:
            chain.close()


def order_of(found: Statuses) -> tuple[str, ...]:
    """Return the members, head first, by the word of the server that knows the newest configuration."""
    known = [each for each in found.values() if each is not None]
    return max(known, key=lambda each: each.number).members if known else ()


def _id(configuration: ChainConfiguration, name: str) -> str:
    return f"chain {configuration.name} {name}"


def _members(configuration: ChainConfiguration, found: Statuses) -> Iterator[ObservedMember]:
    newest = max((each.end for each in found.values() if each is not None), default=0)
    for name, status in found.items():
        facts: tuple[tuple[str, str], ...] = (("chain", configuration.name),)
        said = "silent"
        level: Level = "failed"
        if status is not None:
            said = "removed" if name in status.out else status.role
            level = "good" if name in status.members or name in status.out else "warning"
            facts += (
                ("commands committed", f"{status.committed:,}"),
                ("commands behind", f"{newest - status.committed:,}"),
                ("clients", f"{status.sessions:,}"),
                *((("waits for", status.why),) if status.why else ()),
            )
        at = configuration.servers[name]
        yield ObservedMember(_id(configuration, name), "chain server", name, at, said, level, facts)


def _links(configuration: ChainConfiguration, found: Statuses, order: Sequence[str]) -> Iterator[ObservedLink]:
    for name, following in pairwise(order):
        status = found.get(following)
        ends = _id(configuration, name), _id(configuration, following)
        sent = None if status is None else status.end
        yield ObservedLink(ends, "copies", sent, None if sent is None else 0, note="commands, in this order")


def _problems(file: Path, configuration: ChainConfiguration, found: Statuses) -> Iterator[HealthProblem]:
    silent = [name for name, status in found.items() if status is None]
    if len(silent) == len(found):
        yield HealthProblem(
            f"chain {configuration.name}",
            "failed",
            f"No server of the chain {configuration.name} answers: nothing can be written or read.",
            f"Start them: chappe chain serve {quote(str(file))} --name NAME, of each of {', '.join(silent)}",
        )
        return
    for name in silent:
        yield HealthProblem(
            f"chain {configuration.name} {name}",
            "failed",
            f"Server {name} of the chain {configuration.name} does not answer: the others go on without it.",
            f"Start it again: chappe chain serve {quote(str(file))} --name {name}",
        )
