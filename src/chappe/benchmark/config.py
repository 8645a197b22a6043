"""The configuration of a benchmark: nodes, peerings, subscriptions, and the messages each sends and expects.

The keys of a node are those of Broker's ``broker-cluster-benchmark``:

==================  ===============================================================================================
id                  ``<tcp://HOST:PORT>``, or ``<local:NAME>`` of one that nobody dials. Ports are for the original:
                    here the operating system chooses
peers               names of the nodes that it dials
topics              prefixes that it subscribes to
generator-file      the recording that it plays; a relative path is seen from the file's own directory
num-outputs         how many messages it sends: the recording is cut, or played again; by default all of it, once
num-inputs          how many it is to receive
inputs-by-node      of these, how many from whom; for people, and for the original
disable-forwarding  whether it passes nothing on; also ``disable_forwarding``, and ``forward`` for the opposite
log-verbosity       not looked at
==================  ===============================================================================================
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from chappe.benchmark.syntax import ConfigAddress, ConfigSection, parse, show, show_key
from chappe.errors import ConfigError

NODES_MAX: Final = 500  # as the original
NODES_MIN: Final = 2
FILE_BYTES_MAX: Final = 16 << 20
FIRST_PORT: Final = 8000  # as the original numbers them
V = TypeVar("V")


@dataclass(slots=True)
class BenchmarkNode:
    name: str
    id: str = ""
    peers: list[str] = field(default_factory=list)
    topics: list[str] = field(default_factory=list)
    generator_file: Path | None = None
    num_outputs: int | None = None
    num_inputs: int = 0
    inputs_by_node: dict[str, int] = field(default_factory=dict)
    forwarding: bool = True


def load(path: Path, text: str | None = None) -> list[BenchmarkNode]:
    """Read a file, or ``text`` as if it stood there. Raises ConfigError: it cannot be read, or says what cannot be; the
    text names the line.
    """
    if text is None:
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ConfigError(f"{path}: larger than {FILE_BYTES_MAX:,} bytes, this is not a configuration")
            text = path.read_bytes().decode("utf-8", "surrogateescape")
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return _NodesReader(path).read(parse(text, str(path)))


def render(nodes: Sequence[BenchmarkNode]) -> str:
    lines = ["nodes {"]
    for node in nodes:
        lines += [f"  {show_key(node.name)} {{", f"    id = <{node.id}>"]
        if node.num_inputs:
            lines += [f"    num-inputs = {node.num_inputs}", "    inputs-by-node {"]
            lines += [f"      {show_key(name)} = {count}" for name, count in node.inputs_by_node.items()]
            lines.append("    }")
        if not node.forwarding:
            lines.append("    disable-forwarding = true")
        lines.append("    topics = [")
        lines += [f"      {show(topic)}," for topic in node.topics]
        lines.append("    ]")
        if node.peers:
            lines += ["    peers = [", *[f"      {show(peer)}," for peer in node.peers], "    ]"]
        if node.generator_file is not None:
            lines.append(f"    generator-file = {show(str(node.generator_file))}")
        if node.num_outputs is not None:
            lines.append(f"    num-outputs = {node.num_outputs}")
        lines.append("  }")
    return "\n".join([*lines, "}", ""])


def neighbours(nodes: Sequence[BenchmarkNode]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {node.name: set() for node in nodes}
    for node in nodes:
        for peer in node.peers:
            found[node.name].add(peer)
            found[peer].add(node.name)
    return found


def reached(nodes: Sequence[BenchmarkNode]) -> dict[str, set[str]]:
    """Return the nodes that messages of each node reach, over any number of others that forward.

    Those who forward and are linked to each other all reach the same: each other, and whoever is linked to one of them.
    """
    links = neighbours(nodes)
    forwards = {node.name for node in nodes if node.forwarding}
    beyond: dict[str, set[str]] = {}  # what somebody who forwards reaches, with itself
    for start in forwards:
        if start in beyond:
            continue
        group = {start}
        waiting = [start]
        while waiting:
            new = (links[waiting.pop()] & forwards) - group
            group |= new
            waiting += new
        whole = group.union(*(links[each] for each in group))
        beyond |= dict.fromkeys(group, whole)
    found = {}
    for name, linked in links.items():
        ways = [beyond[each] for each in ({name} if name in forwards else linked & forwards)]
        found[name] = linked.union(*ways) - {name}
    return found


def links_among(nodes: Sequence[BenchmarkNode], groups: dict[str, set[str]]) -> dict[str, int]:
    """Return the number of links between any two of each node's group and the node itself."""
    links = neighbours(nodes)
    counts: dict[frozenset[str], int] = {}  # most groups are the same
    found = {}
    for name, others in groups.items():
        group = frozenset((*others, name))
        if group not in counts:
            counts[group] = sum(len(links[each] & group) for each in group) // 2
        found[name] = counts[group]
    return found


class _NodesReader:
    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, file: ConfigSection) -> list[BenchmarkNode]:
        self._check_known(file, ("nodes",))
        said = file.values.get("nodes")
        if not isinstance(said, ConfigSection):
            raise self._wrong(1, "there is no section nodes { NAME { ... } }")
        nodes = []
        for name in said.values:
            nodes.append(self._node(name, self._get(said, name, ConfigSection, ConfigSection(0))))
        if not NODES_MIN <= len(nodes) < NODES_MAX:
            raise self._wrong(said.line, f"{len(nodes)} nodes: at least {NODES_MIN} and below {NODES_MAX} are possible")
        self._check_peers(nodes, said)
        if not any(node.generator_file for node in nodes):
            raise self._wrong(said.line, "no node has a generator-file, so nothing would be sent")
        if not any(node.num_inputs for node in nodes):
            raise self._wrong(said.line, "no node has num-inputs above 0, so nothing would be waited for")
        return nodes

    def _node(self, name: str, said: ConfigSection) -> BenchmarkNode:
        self._check_known(said, _KEYS)
        for key in ("id", "topics"):
            if key not in said.values:
                raise self._wrong(said.line, f"node {name!r} has no {key}")
        node = BenchmarkNode(name)
        address = said.values["id"]
        if not isinstance(address, ConfigAddress) or not address.startswith(("tcp:", "local:")):
            raise self._wrong(said.lines["id"], "id is <tcp://HOST:PORT> or <local:NAME>")
        node.id = str(address)
        node.peers = self._texts(said, "peers")
        node.topics = self._texts(said, "topics")
        if "generator-file" in said.values:
            file = self._path.parent / Path(self._get(said, "generator-file", str, "")).expanduser()
            if not file.is_file():
                raise self._wrong(said.lines["generator-file"], f"there is no file {file}")
            node.generator_file = file
        if "num-outputs" in said.values:
            node.num_outputs = self._number(said, "num-outputs")
        node.num_inputs = self._number(said, "num-inputs")
        by_node = self._get(said, "inputs-by-node", ConfigSection, ConfigSection(0))
        node.inputs_by_node = {each: self._number(by_node, each) for each in by_node.values}
        if by_node.values and sum(node.inputs_by_node.values()) != node.num_inputs:
            raise self._wrong(by_node.line, f"inputs-by-node of {name!r} sum up to something else than num-inputs")
        # the original counts what a node publishes and wants itself; here one's own publications do not come back
        node.num_inputs -= node.inputs_by_node.pop(name, 0)
        forward = self._get(said, "forward", bool, True)
        for key in ("disable-forwarding", "disable_forwarding"):
            forward = forward and not self._get(said, key, bool, False)
        node.forwarding = forward
        return node

    def _check_peers(self, nodes: list[BenchmarkNode], said: ConfigSection) -> None:
        known = {node.name: node for node in nodes}
        for node in nodes:
            line = said.values[node.name].lines.get("peers", said.lines[node.name])
            for peer in node.peers:
                if peer not in known:
                    raise self._wrong(line, f"{node.name!r} peers with {peer!r}, which is not among the nodes")
                if peer == node.name:
                    raise self._wrong(line, f"{node.name!r} peers with itself")
            node.peers = [each for each in dict.fromkeys(node.peers) if node.name not in known[each].peers]
        links = neighbours(nodes)
        for node in nodes:
            if not links[node.name]:
                raise self._wrong(said.lines[node.name], f"{node.name!r} peers with nobody")

    def _check_known(self, said: ConfigSection, keys: Sequence[str]) -> None:
        for key, line in said.lines.items():
            if key not in keys:
                near = difflib.get_close_matches(key, keys, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(keys)}"
                raise self._wrong(line, f"unknown key {key!r}; {hint}")

    def _texts(self, said: ConfigSection, key: str) -> list[str]:
        found = self._get(said, key, list, [])
        if not all(isinstance(each, str) for each in found):
            raise self._wrong(said.lines[key], f"{key} is a list of texts in quotes")
        return found

    def _number(self, said: ConfigSection, key: str) -> int:
        found = self._get(said, key, int, 0)
        if found < 0 or isinstance(found, bool):
            raise self._wrong(said.lines[key], f"{key} is a number from 0 on")
        return found

    def _get(self, said: ConfigSection, key: str, kind: type[V], default: V) -> V:
        value: Any = said.values.get(key, default)
        if not isinstance(value, kind):
            raise self._wrong(said.lines[key], f"{key} is {_KINDS[kind]}")
        return value

    def _wrong(self, line: int, problem: str) -> ConfigError:
        return ConfigError(f"{self._path}, line {line}: {problem}")


_KEYS: Final = (
    "id", "peers", "topics", "generator-file", "num-outputs", "num-inputs", "inputs-by-node", "disable-forwarding",
    "disable_forwarding", "forward", "log-verbosity",
)  # fmt: skip
_KINDS: Final[dict[type, str]] = {
    ConfigSection: "a section in braces",
    list: "a list in brackets",
    str: "a text in quotes",
    int: "a number",
    bool: "true or false",
}
