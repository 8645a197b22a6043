"""Which topics and partitions are read."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from chappe.data.topic import Filter
from chappe.errors import UsageError

_SPECIAL: Final = frozenset("\\^$+?()[]{}|*")  # a pattern with any of these is a regular expression; a dot is a dot


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
        """``prefix*``, or a regular expression that the whole name of a topic must match.

        It is a prefix if nothing before the ``*`` is special in regular expressions, a dot aside: ``metrics.*`` are
        the topics that start with ``metrics.``, as everywhere in chappe. Raises UsageError.
        """
        if text.endswith("*") and not _SPECIAL & set(text[:-1]):
            return cls((Filter.parse(text),))
        try:
            re.compile(text)
        except re.error as error:
            raise UsageError(f"{text!r} is neither a prefix* nor a regular expression: {error}") from None
        return cls((Filter(_beginning(text), True),), pattern=text)

    @classmethod
    def of_partitions(cls, partitions: Iterable[tuple[str, str]]) -> Selection:
        """Partitions by topic and name. Raises UsageError."""
        found = frozenset(partitions)
        return cls(tuple(Filter.parse(topic) for topic in sorted({topic for topic, _ in found})), partitions=found)

    def has_topic(self, topic: str) -> bool:
        """Whether anything of the topic may be read."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None  # the module keeps what it compiled
        return any(each.matches(topic) for each in self.filters)

    def has(self, topic: str, partition: str) -> bool:
        """Whether the partition is read."""
        if self.partitions is not None:
            return (topic, partition) in self.partitions
        return self.has_topic(topic)

    @property
    def named(self) -> list[str]:
        """Topics that are wanted by their very name."""
        return [each.name for each in self.filters if not each.prefix]

    def __str__(self) -> str:
        return self.pattern or ", ".join(map(str, self.filters))


def _beginning(pattern: str) -> str:
    """What every text that matches a regular expression starts with, as far as that is plain to see."""
    if "|" in pattern:
        return ""
    text = pattern.removeprefix("^")
    size = next((at for at, char in enumerate(text) if char == "." or char in _SPECIAL), len(text))
    optional = size < len(text) and text[size] in "?*{"  # the character before may be absent
    return text[: size - 1 if optional else size] if size else ""
