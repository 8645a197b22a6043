"""Permissions in a world of the mesh: versions that one host after the other learns, and what each of them says."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from random import Random
from typing import Final
from uuid import UUID

from tests.worlds.sealing import points_of, signed_file

from chappe.permissions.rules import Identity, Permissions, Rule
from chappe.sim.world import WALL_START_US

NOW: Final = datetime.fromtimestamp(WALL_START_US / 1e6, UTC)
END: Final = NOW + timedelta(days=365)
PATTERNS: Final = ("*", "*", "/a*", "/a", "/b", "/c*")
DENIED: Final = ("/a/x", "/a*", "/c*", "*")
FORWARDS: Final = 0.8  # of the hosts may
NAMED: Final = 0.7  # of the certificates name an endpoint id
MANY: Final = 16  # names; no world has more

Line = tuple[bool, str, str, str]  # whether it allows, a verb, a name and a pattern of topics


@dataclass(frozen=True)
class Version:
    """One file: its rules, the first that fits decides."""

    number: int
    lines: tuple[Line, ...]
    forwarders: frozenset[str]

    def may(self, name: str, verb: str, topic: bytes) -> bool:
        """What it says, found without what is tested."""
        text = topic.decode()
        for allows, about, who, pattern in self.lines:
            fits = text.startswith(pattern[:-1]) if pattern.endswith("*") else text == pattern
            if (about, who) == (verb, name) and fits:
                return allows
        return False

    def publishes(self, name: str, topic: bytes) -> bool:
        """Whether somebody may send this: who may forward may, too."""
        return self.may(name, "publish", topic) or self.forwards(name)

    def gets(self, name: str, topic: bytes) -> bool:
        """Whether somebody may be sent this."""
        return self.may(name, "subscribe", topic) or self.forwards(name)

    def forwards(self, name: str) -> bool:
        """Whether somebody may forward: everything or nothing."""
        return name in self.forwarders


class Charter:
    """All versions so far, and who has which."""

    def __init__(self, seed: int) -> None:
        self.versions: list[Version] = []
        self.held: dict[str, int] = {}  # by name
        self.given: list[tuple[float, str, int]] = []  # when who took which
        self._seed = seed
        self._rng = Random(f"charter {seed}")
        self._named = {name for name in map("e{}".format, range(MANY)) if self._rng.random() < NAMED}
        self._all_forward = self._rng.random() < 0.5  # always
        self._files: dict[int, bytes] = {}
        self.draw()

    def id_of(self, name: str) -> bytes | None:
        """The endpoint id that a certificate names; None if it names none."""
        return sha256(f"{self._seed} {name}".encode()).digest()[:16] if name in self._named else None

    def draw(self, *, all_forward: bool = False) -> Version:
        """Another version."""
        rng, lines = self._rng, list[Line]()
        for name in map("e{}".format, range(MANY)):
            for verb in ("publish", "subscribe"):
                if rng.random() < 0.2:
                    lines.append((False, verb, name, rng.choice(DENIED)))
                lines += [(True, verb, name, each) for each in rng.sample(PATTERNS, rng.choice((0, 1, 1, 2)))]
        share = 1.0 if all_forward or self._all_forward else FORWARDS
        names = frozenset([name for name in map("e{}".format, range(MANY)) if rng.random() < share])
        if self.versions and not all_forward and rng.random() < 0.6:
            names = self.versions[-1].forwarders
        lines += [(True, "forward", name, "*") for name in sorted(names)]
        self.versions.append(Version(len(self.versions) + 1, tuple(lines), names))
        return self.versions[-1]

    def file(self, number: int) -> bytes:
        """The file of a version, as the authority has signed it."""
        if number not in self._files:
            self._files[number] = signed_file(self._permissions(self.versions[number - 1]))
        return self._files[number]

    def took(self, name: str, number: int, now: float) -> None:
        """Somebody goes by a version from now on."""
        self.held[name] = number
        self.given.append((now, name, number))

    def between(self, start: float, stop: float) -> list[Version]:
        """The versions that anybody went by in between, and those between these."""
        held: dict[str, int] = {}
        found = []
        for at, name, number in self.given:
            if at <= start:
                held[name] = number
            elif at <= stop:
                found.append(number)
        found += held.values()
        return self.versions[min(found) - 1 : max(found)] if found else []

    def allow(self, publisher: str, receiver: str, topic: bytes, start: float, stop: float) -> bool:
        """Whether all versions of that time let a message go from one to the other, and ways lead over the same."""
        found = self.between(start, stop)
        return len({each.forwarders for each in found}) == 1 and all(
            each.publishes(publisher, topic) and each.gets(receiver, topic) for each in found
        )

    def _permissions(self, version: Version) -> Permissions:
        identities = {}
        for name in map("e{}".format, range(MANY)):
            id, (curve, signs) = self.id_of(name), points_of(name)
            identities[name] = Identity(name, "member", curve, None if id is None else UUID(bytes=id), END, signs)
        rules = [
            Rule(allows, frozenset((verb,)), frozenset(), frozenset((name,)), (pattern,))
            for allows, verb, name, pattern in version.lines
        ]
        by_curve = {each.curve: each for each in identities.values()}
        return Permissions(version.number, NOW, END, identities, tuple(rules), by_curve)
