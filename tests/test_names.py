"""A class's name means one thing: no two classes of chappe share one.

``compat.broker`` has the names of Broker's Python API. Messages of a wire protocol have those of its description.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent.parent / "src" / "chappe"
OF_BROKER: Final = "compat"
CLASS: Final = re.compile(r"^ *class (\w+)[(:\[]", re.MULTILINE)

# A protocol, and the modules whose classes are its messages: their names are unique within it.
MESSAGES: Final[dict[str, tuple[str, ...]]] = {
    "Dafka's, and what is asked of stores beside it": ("log/messages.py", "log/queries.py"),
    "Broker's between peers": ("mesh/messages.py", "mesh/links/greetings.py"),
    "Zeek's events within Broker's": ("data/zeek.py",),
    "Broker's channels": ("channel/messages.py",),
    "Broker's data stores": ("kv/commands/messages.py",),
    "the Clustered Hashmap Protocol": ("kv/chp/messages.py",),
    "streams of map servers": ("kv/chp/stream.py",),
    "data stores to their chain": ("kv/chained/messages.py",),
    "Binary Star": ("replication/binary_star/messages.py",),
    "agreement by majority": ("replication/agreement/core.py",),
    "chains": ("replication/chain/messages.py", "replication/chain/wire.py"),
    "commands of ordered topics to their chain": ("log/ordered/commands.py",),
    "groups that hand on their keys": ("sealing/messages.py",),
    "taps": ("tapping/messages.py",),
}


def classes(path: Path) -> list[str]:
    """The names of all classes in a module, nested ones included; a syntax tree of each takes ten times as long."""
    return CLASS.findall(path.read_text(encoding="utf-8"))


@cache
def shared() -> frozenset[str]:
    """The names that two classes have, outside of ``compat`` and of messages."""
    apart = {SOURCES / each for modules in MESSAGES.values() for each in modules}
    paths = [each for each in SOURCES.rglob("*.py") if each.relative_to(SOURCES).parts[0] != OF_BROKER]
    counts = Counter(name for path in paths if path not in apart for name in classes(path))
    return frozenset(name for name, count in counts.items() if count > 1)


def test_no_name_is_that_of_two_classes() -> None:
    assert sorted(shared()) == []


def test_a_protocol_has_a_name_for_one_message_only() -> None:
    for protocol, modules in MESSAGES.items():
        counts = Counter(name for each in modules for name in classes(SOURCES / each))
        assert {name for name, count in counts.items() if count > 1} == set(), protocol
