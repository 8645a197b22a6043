"""Endpoints that only offer version 1 are originals to all others, and to each other."""

from __future__ import annotations

from itertools import pairwise

import pytest
from tests.mesh.net_rig import Net, Node

from chappe.mesh.flows import FLOWS
from chappe.mesh.messages import DATA

TEXTS = [b"%d" % number for number in range(5)]


def net_of(versions: str, links: list[tuple[int, int]]) -> Net:
    """Node n offers no more than the n-th of these."""
    net = Net(0)
    net.nodes = [Node(number, version_max=int(version)) for number, version in enumerate(versions)]
    for one, two in links:
        net.link(one, two)
    net.settle()
    return net


def publish(net: Net, publisher: int) -> None:
    for text in TEXTS:
        net[publisher].publish(text)
        net.pump()


@pytest.mark.parametrize("versions", ["1111", "2112", "1221", "2121", "12122", "212212"])
def test_a_chain_passes_everything_on_once_and_in_order(versions: str) -> None:
    last = len(versions) - 1
    net = net_of(versions, list(pairwise(range(last + 1))))
    net.want(*range(last + 1))
    for publisher in (0, last):
        publish(net, publisher)
        for node in net.nodes:
            assert node.payloads == ([] if node.number == publisher else TEXTS)
            node.delivered.clear()
    new = {(one, two) for one, two in pairwise(range(last + 1)) if versions[one] == versions[two] == "2"}
    assert {(min(way), max(way)) for way in net.ways(list(FLOWS))} == new
    assert {(min(way), max(way)) for way in net.ways([DATA])} == set(pairwise(range(last + 1))) - new
    net.check()


def test_what_nobody_wants_on_the_way_arrives_behind_it() -> None:
    net = net_of("2112", [(0, 1), (1, 2), (2, 3)])
    net.want(3)
    publish(net, 0)
    assert [node.payloads for node in net.nodes] == [[], [], [], TEXTS]
    assert net.ways([DATA]) == [(0, 1), (1, 2), (2, 3)] * len(TEXTS)


def test_one_of_two_who_are_linked_speaks_with_an_old_one_beside_both() -> None:
    net = net_of("221", [(0, 1), (1, 2), (0, 2)])
    net.want(0, 1, 2)
    for publisher in range(3):
        publish(net, publisher)
        for node in net.nodes:
            assert node.payloads == ([] if node.number == publisher else TEXTS)
            node.delivered.clear()
    net.check()
