"""A benchmark's configuration from recordings: a node for each folder, and what it is to receive.

Topics and peerings decide the receivers: a node gets what others publish to a topic that begins with one of its
prefixes, once, if any way of endpoints that forward leads there. Loops do not matter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from chappe.benchmark.config import FIRST_PORT, NODES_MAX, NODES_MIN, BenchmarkNode, reached
from chappe.benchmark.syntax import ConfigSection, parse
from chappe.errors import InvalidData, StorageError, StorageFormat, UsageError
from chappe.storage.recordings.codec import entries
from chappe.storage.recordings.files import CONFIG_FILE, ID_FILE, MESSAGES_FILE, PEERS_FILE, TOPICS_FILE

MESSAGES_BYTES_MAX: Final = 1 << 30  # a recording of some 100 million messages; it is held in memory
TEXT_BYTES_MAX: Final = 64 << 20


@dataclass(slots=True)
class Recording:
    """The content of one folder; ``published`` counts its messages by topic."""

    name: str
    id: str
    peers: set[str]
    topics: list[str]
    forwarding: bool
    messages: Path
    published: Counter[bytes] = field(default_factory=Counter)


def read(directory: Path, warn: Callable[[str], None] = lambda text: None) -> Recording:
    """Read a folder; ``warn`` hears of a last message that was not written whole. Raises StorageError: something is
    missing, or cannot be read; StorageFormat: something in it does not belong to a recording.
    """
    if not directory.is_dir():
        raise StorageError(f"{directory} is not a folder: give those that endpoints recorded into")
    missing = [each for each in (ID_FILE, MESSAGES_FILE, PEERS_FILE, TOPICS_FILE) if not (directory / each).is_file()]
    if missing:
        raise StorageError(f"{directory} is not a recording: it has no {' and no '.join(missing)}")
    found = Recording(
        name=directory.resolve().name,
        id=_text(directory / ID_FILE).strip(),
        peers=set(_text(directory / PEERS_FILE).split()),
        topics=sorted({line.removesuffix("\r") for line in _text(directory / TOPICS_FILE).split("\n") if line}),
        forwarding=_forwards(directory / CONFIG_FILE),
        messages=(directory / MESSAGES_FILE).resolve(),
    )
    if not found.id:
        raise StorageFormat(f"{directory / ID_FILE} is empty")
    path = directory / MESSAGES_FILE
    try:
        for entry in entries(_bytes(path, MESSAGES_BYTES_MAX), lambda problem: warn(f"{path} ends there: {problem}")):
            found.published[entry.topic] += 1
    except InvalidData as problem:
        raise StorageFormat(f"{path}: {problem}") from None
    return found


def generate(
    recordings: Sequence[Recording], excluded: Sequence[str] = (), warn: Callable[[str], None] = lambda text: None
) -> list[BenchmarkNode]:
    """Return the nodes of a benchmark; ``warn`` hears of peers of which there is no recording. Raises UsageError: they
    make no benchmark: two have one name or id, nobody peers, nobody would receive anything.
    """
    recordings = sorted(recordings, key=lambda each: each.name)
    for key in ("name", "id"):
        for first, second in _twice(recordings, key):
            raise UsageError(f"{first.messages.parent} and {second.messages.parent} have the same {key}")
    for name in excluded:
        if name not in {each.name for each in recordings}:
            raise UsageError(f"{name!r} is not among the recordings, so it cannot be excluded")
    chosen = {each.name: each for each in recordings if each.name not in excluded}
    if not NODES_MIN <= len(chosen) < NODES_MAX:
        raise UsageError(f"{len(chosen)} recordings: at least {NODES_MIN} and below {NODES_MAX} are possible")
    nodes = {name: BenchmarkNode(name, topics=each.topics, forwarding=each.forwarding) for name, each in chosen.items()}
    _join(nodes, chosen, {each.id: each.name for each in recordings}, warn)
    for name, each in chosen.items():
        nodes[name].generator_file = each.messages if each.published else None
    _expect(nodes, chosen)
    if not any(node.num_inputs for node in nodes.values()):
        raise UsageError("nobody would receive anything: no node wants what another one has published")
    return list(nodes.values())


def _join(
    nodes: dict[str, BenchmarkNode],
    recordings: dict[str, Recording],
    names: dict[str, str],
    warn: Callable[[str], None],
) -> None:
    linked: set[frozenset[str]] = set()
    for name, each in recordings.items():
        strangers = [peer for peer in each.peers if peer not in names]
        if strangers:
            warn(f"{name}: {len(strangers)} of its peers have no recording here and are left out")
        linked |= {frozenset((name, names[peer])) for peer in each.peers if peer in names} - {frozenset((name,))}
    port = FIRST_PORT
    dialled = set()
    for pair in sorted(map(sorted, linked)):
        if set(pair) <= nodes.keys():
            first, second = pair
            nodes[first].peers.append(second)
            dialled.add(second)
    for name, node in nodes.items():
        node.id = f"local:{name}"
        if name in dialled:
            node.id = f"tcp://127.0.0.1:{port}"
            port += 1
        elif not node.peers:
            raise UsageError(f"{name} is peered with none of the others: exclude it, or give its peers' recordings too")


def _expect(nodes: dict[str, BenchmarkNode], recordings: dict[str, Recording]) -> None:
    """Set the number of messages that each node gets from each other one."""
    prefixes = {
        name: tuple([topic.encode("utf-8", "surrogateescape") for topic in node.topics]) for name, node in nodes.items()
    }
    wanting: dict[bytes, list[str]] = {}
    for source, others in reached(list(nodes.values())).items():
        for topic, times in recordings[source].published.items():
            if topic not in wanting:
                wanting[topic] = [name for name, wanted in prefixes.items() if topic.startswith(wanted)]
            for name in wanting[topic]:
                if name in others:
                    inputs = nodes[name].inputs_by_node
                    inputs[source] = inputs.get(source, 0) + times
                    nodes[name].num_inputs += times


def _twice(recordings: Sequence[Recording], key: str) -> list[tuple[Recording, Recording]]:
    seen: dict[str, Recording] = {}
    firsts = [(seen.setdefault(getattr(each, key), each), each) for each in recordings]
    return [(first, each) for first, each in firsts if first is not each]


def _forwards(path: Path) -> bool:
    if not path.is_file():
        return True
    said = parse(_text(path), str(path)).values.get("broker")
    values = said.values if isinstance(said, ConfigSection) else {}
    return values.get("forward", True) is not False and values.get("disable-forwarding", False) is not True


def _text(path: Path) -> str:
    return _bytes(path, TEXT_BYTES_MAX).decode("utf-8", "surrogateescape")


def _bytes(path: Path, bytes_max: int) -> bytes:
    try:
        if path.stat().st_size > bytes_max:
            raise StorageError(f"{path} is larger than the {bytes_max:,} bytes that are read")
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
