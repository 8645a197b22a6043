"""Which topics and partitions are read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import Filter
from chappe.reading.pattern import compiled, escaped

_GLOB: Final = re.compile(r"([\w./:-]*[\w/:-])\*")  # what files are named by, and is hardly meant as an expression


@dataclass(frozen=True, slots=True)
class Selection:
    """Topics by name, prefix or regular expression, or single partitions.

    ``filters`` are what stores are asked for; ``pattern`` and ``partitions`` narrow that down.
    """

    filters: tuple[Filter, ...]
    pattern: str | None = None
    partitions: frozenset[tuple[str, str]] | None = None

    @classmethod
    def of_topics(cls, names: Iterable[str]) -> Selection:
        """``name``, or ``prefix*`` for all topics that start so. Raises UsageError."""
        return cls(tuple(Filter.parse(name) for name in dict.fromkeys(names)))

    @classmethod
    def of_pattern(cls, text: str) -> Selection:
        """A regular expression that the whole name of a topic must match, see ``pattern.py``. Raises UsageError."""
        return cls((Filter.parse(compiled(text).beginning + "*"),), pattern=text)

    @classmethod
    def of_partitions(cls, partitions: Iterable[tuple[str, str]]) -> Selection:
        """Partitions by topic and name. Raises UsageError."""
        found = frozenset(partitions)
        return cls(tuple(Filter.parse(topic) for topic in sorted({topic for topic, _ in found})), partitions=found)

    def has_topic(self, topic: str) -> bool:
        """Whether anything of the topic may be read."""
        return bool(self.topics_of([topic]))

    def topics_of(self, topics: Collection[str]) -> set[str]:
        """Those of ``topics`` of which anything may be read."""
        if self.pattern is not None:
            return compiled(self.pattern).matching(topics)
        return {topic for topic in topics if any(each.matches(topic) for each in self.filters)}

    def has(self, topic: str, partition: str) -> bool:
        """Whether the partition is read."""
        return (topic, partition) in self.partitions if self.partitions is not None else self.has_topic(topic)

    @property
    def named(self) -> list[str]:
        """Topics that are wanted by their very name."""
        return [each.name for each in self.filters if not each.prefix]

    def missing(self, topics: Collection[str]) -> str | None:
        """What is wanted and is none of ``topics``, as the end of a sentence; None if there is something of everything.

        Of a prefix nothing is ever missing. ``topics`` are some that are selected.
        """
        lacking = [name for name in self.named if name not in topics]
        if lacking:
            return f"named {', '.join(lacking)}"
        if self.pattern is None or topics:
            return None
        glob = _GLOB.fullmatch(self.pattern)
        hint = f" (a regular expression: all that begin with {glob[1]} are {escaped(glob[1])}.*)" if glob else ""
        return f"that matches {self.pattern}{hint}"

    def __str__(self) -> str:
        return self.pattern or ", ".join(map(str, self.filters))
