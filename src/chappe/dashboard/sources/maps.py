"""Shared maps: each is followed as one of its clients, so all that is in it is in this process's memory, too."""

from __future__ import annotations

from collections.abc import Sequence

from chappe import SharedMap
from chappe.observing.snapshot import (
    HealthProblem,
    ObservedLink,
    ObservedMember,
    ObservedPart,
    ObservedStore,
    readable,
    witness,
)
from chappe.security import LogSecurity
from chappe.system import started


class MapSource:
    """Follows maps. ``maps``: of each its servers, ``HOST:PORT``, separated by commas, as ``chappe map --servers``
    takes them.
    """

    name = "maps"
    mend = "Start it: chappe map serve"

    def __init__(self, maps: Sequence[str], security: LogSecurity = None) -> None:
        self.maps: dict[str, SharedMap[bytes]] = {}
        self._witnesses: dict[tuple[str, str], str] = {}  # where they are, by map and server; also of silent ones
        try:
            for each in dict.fromkeys(maps):
                self.maps[each] = SharedMap(*each.split(","), security=security, timeout=0)
        except BaseException:
            self.close()
            raise

    def look(self) -> ObservedPart:
        members: list[ObservedMember] = []
        links: list[ObservedLink] = []
        keepings: list[ObservedStore] = []
        problems: list[HealthProblem] = []
        for name, each in self.maps.items():
            followed = each.server
            silent = each.member.silent
            judges: dict[str, ObservedMember] = {}
            for server, beat in zip(name.split(","), each.member.heard, strict=True):
                at = server.strip()
                is_followed = followed is not None and _same(followed, at)
                is_silent = beat is None and (not followed or (not is_followed and at in silent))
                status = "followed" if is_followed else "does not answer" if is_silent else "not followed"
                if beat is not None and beat.role:
                    status = "active" if beat.active else "passive"
                if beat is not None:
                    self._witnesses[name, at] = readable(beat.witness)
                if asked := self._witnesses.get((name, at)):
                    judge = witness(asked)
                    judges[judge.id] = judge
                    links.append(ObservedLink((f"map {at}", judge.id), "asks", note=f"map {name}"))
                level = "failed" if is_silent else "good"
                members.append(ObservedMember(f"map {at}", "map server", at, at, status, level))  # type: ignore[arg-type]
                if followed and is_silent:
                    problems.append(
                        HealthProblem(
                            f"map server {at}",
                            "failed",
                            f"The map server at {at} does not answer: the other one of the pair serves alone.",
                            f"Start it again: {started.command(f'map server {at}', _serve(at))}",
                        )
                    )
            members += judges.values()
            found = [at.strip() for at in name.split(",")]
            servers = tuple(f"map {at}" for at in found)
            links += [ObservedLink((servers[0], other), "copies", note="a pair") for other in servers[1:]]
            state = each.state
            keepings.append(
                ObservedStore(
                    "map", name, servers, (), len(each) if each.ready else None, str(getattr(state, "value", state))
                )
            )
            if not each.ready or followed is None:
                problems.append(
                    HealthProblem(
                        f"map {name}",
                        "failed",
                        f"No server of the map at {name} answers: it cannot be written, and what is shown may be old.",
                        f"Start it: {' and '.join(started.command(f'map server {at}', _serve(at)) for at in found)}",
                    )
                )
        return ObservedPart(tuple(members), tuple(links), keepings=tuple(keepings), problems=tuple(problems))

    def close(self) -> None:
        for each in self.maps.values():
            each.close()


def _serve(at: str) -> str:
    return f"chappe map serve --at {at.rpartition('@')[2]}, with the options that it had"


def _same(one: str, other: str) -> bool:
    return one.rpartition("@")[2] == other.rpartition("@")[2] or one.endswith(other)
