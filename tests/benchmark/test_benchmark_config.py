"""Configurations of a benchmark: those of the original, and what is wrong with others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.benchmark.config import NODES_MAX, BenchmarkNode, links_among, load, neighbours, reached, render
from chappe.errors import ConfigError

# as the original's manual has it
MANUAL = """
nodes {
  earth {
    id = <local:earth>
    peers = ["mars"]
    topics = ["/benchmark/events"]
    num-inputs = 100000
  }
  mars {
    id = <tcp://[::1]:8001>
    topics = ["/benchmark/events"]
    generator-file = "mars.dat"
    num-outputs = 100000
  }
}
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "mars.dat").write_bytes(b"")
    return tmp_path / "bench.conf"


def test_the_example_of_the_manual_is_read(path: Path) -> None:
    earth, mars = load(path, MANUAL)
    topics = ["/benchmark/events"]
    assert earth == BenchmarkNode("earth", "local:earth", ["mars"], topics, num_inputs=100_000)
    file = path.parent / "mars.dat"
    assert mars == BenchmarkNode("mars", "tcp://[::1]:8001", [], topics, generator_file=file, num_outputs=100_000)


def test_what_is_rendered_is_read_as_the_same(path: Path) -> None:
    nodes = [
        BenchmarkNode("a b", "local:a b", ["c"], ['/x"y', "\udcff"], path.parent / "mars.dat", 5, 3, {"c": 3}, False),
        BenchmarkNode("c", "tcp://127.0.0.1:8000", [], [], path.parent / "mars.dat", None, 1, {"a b": 1}),
    ]
    nodes[0].id = "local:a"
    path.write_bytes(render(nodes).encode("utf-8", "surrogateescape"))
    assert load(path) == nodes


def test_older_spellings_and_what_a_node_sends_to_itself_are_understood(path: Path) -> None:
    text = """nodes {
      a { id = <local:a> topics = [] peers = ["b"] num-inputs = 5 inputs-by-node { a = 2 b = 3 } forward = false }
      b { id = <local:b> topics = [] peers = ["a", "c", "c"] generator-file = "mars.dat" disable_forwarding = true }
      c { id = <local:c> topics = [] log-verbosity = "debug" }
    }"""
    a, b, c = load(path, text)
    assert (a.num_inputs, a.inputs_by_node) == (3, {"b": 3})  # own publications do not come back
    assert [each.forwarding for each in (a, b, c)] == [False, False, True]
    assert (a.peers, b.peers) == ([], ["a", "c"])  # one of two that dial each other is enough


def test_messages_go_over_those_who_forward_in_loops_too() -> None:
    ring = {
        name: BenchmarkNode(name, peers=list(peers)) for name, peers in {"a": "b", "b": "c", "c": "d", "d": "a"}.items()
    }
    nodes = list(ring.values())
    assert reached(nodes) == {name: set("abcd") - {name} for name in "abcd"}
    ring["b"].forwarding = ring["d"].forwarding = False
    assert reached(nodes) == {"a": set("bd"), "b": set("acd"), "c": set("bd"), "d": set("acb")}
    assert links_among(nodes, reached(nodes)) == {"a": 2, "b": 4, "c": 2, "d": 4}
    ring["b"].forwarding = True
    assert reached(nodes) == {name: set("abcd") - {name} for name in "abcd"}


@given(st.data())
def test_whom_messages_reach_is_what_passing_them_on_leads_to(data: st.DataObject) -> None:
    names = "abcdefg"
    nodes = [
        BenchmarkNode(
            name, peers=data.draw(st.lists(st.sampled_from(names), max_size=3)), forwarding=data.draw(st.booleans())
        )
        for name in names
    ]
    links = neighbours(nodes)
    for start in names:
        seen, waiting = {start}, [start]
        for at in waiting:
            for peer in sorted(links[at] - seen) if at == start or nodes[names.index(at)].forwarding else ():
                seen.add(peer)
                waiting.append(peer)
        assert reached(nodes)[start] == seen - {start}


def change(old: str, new: str) -> str:
    assert old in MANUAL
    return MANUAL.replace(old, new)


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "there is no section nodes"),
        ("nodes = 5", 1, "there is no section nodes"),
        ("knots { }", 1, "unknown key 'knots'; did you mean 'nodes'?"),
        ("nodes { a = 1 }", 1, "a is a section in braces"),
        (change("peers =", "piers ="), 5, "unknown key 'piers'; did you mean 'peers'?"),
        (change('["mars"]', '["venus"]'), 5, "'earth' peers with 'venus', which is not among the nodes"),
        (change('["mars"]', '["earth"]'), 5, "'earth' peers with itself"),
        (change('["mars"]', "[]"), 3, "'earth' peers with nobody"),
        (change('["mars"]', '"mars"'), 5, "peers is a list in brackets"),
        (change('["mars"]', "[1]"), 5, "peers is a list of texts"),
        (change("<local:earth>", '"earth"'), 4, "id is <tcp://HOST:PORT> or <local:NAME>"),
        (change("    id = <local:earth>\n", ""), 3, "node 'earth' has no id"),
        (change('"mars.dat"', '"venus.dat"'), 12, "there is no file"),
        (change("num-inputs = 100000", "num-inputs = -1"), 7, "num-inputs is a number from 0 on"),
        (change("num-inputs = 100000", "num-inputs = true"), 7, "num-inputs is a number from 0 on"),
        (change("num-inputs = 100000", "num-inputs = 0"), 2, "nothing would be waited for"),
        (change("num-inputs = 100000", "num-inputs = 5 inputs-by-node { mars = 4 }"), 7, "sum up to something else"),
        (change('    generator-file = "mars.dat"\n', ""), 2, "nothing would be sent"),
        ("nodes { a { id = <local:a> topics = [] } }", 1, "1 nodes: at least 2"),
        ("nodes {" + "".join(f"n{n} {{ id = <local:n> topics = [] }}" for n in range(NODES_MAX)) + "}", 1, "below 500"),
    ],
)
def test_what_cannot_be_names_the_line(path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(path, text)
    assert str(raised.value).startswith(f"{path}, line {line}: ")
    assert problem in str(raised.value)


def test_files_that_are_not_there_or_too_large_say_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(path)
    monkeypatch.setattr("chappe.benchmark.config.FILE_BYTES_MAX", 3)
    path.write_text("nodes {}")
    with pytest.raises(ConfigError, match="larger than 3 bytes"):
        load(path)
