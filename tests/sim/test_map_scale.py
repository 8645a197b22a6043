"""Many clients of one map, in a world in which a server's work takes time: thirty thousand by the command."""

from __future__ import annotations

import pytest
from tests.worlds.scale.maps import LATENCY_S, MESSAGE_S, Phase, World, main, play

from chappe.limits import MAP_LIMITS

CLIENTS = 1_200
SLOW = 10  # a server so much slower has as much to do for each update as with ten times the clients


@pytest.fixture(scope="module")
def played() -> tuple[World, dict[str, Phase]]:
    world, phases = play(CLIENTS, message_s=SLOW * MESSAGE_S)
    return world, {each.name: each for each in phases}


def test_all_of_a_crowd_have_the_same_map_in_the_end(played: tuple[World, dict[str, Phase]]) -> None:
    world, _ = played
    assert world.wrong() == []
    assert world.clients[0].core.pending == 0


def test_a_crowd_loses_no_server_that_lives(played: tuple[World, dict[str, Phase]]) -> None:
    _, phases = played
    assert {name: each.lost for name, each in phases.items() if each.lost} == {"the active server dies": CLIENTS}


def test_each_update_costs_one_message_for_each_client(played: tuple[World, dict[str, Phase]]) -> None:
    _, phases = played
    for name in ("an update", "a late update"):
        assert phases[name].messages <= 1.1 * CLIENTS
        assert phases[name].seconds <= 1.5 * CLIENTS * SLOW * MESSAGE_S + 10 * LATENCY_S


def test_a_storm_of_snapshots_is_bounded(played: tuple[World, dict[str, Phase]]) -> None:
    _, phases = played
    joining = phases["all join at once"]
    assert joining.messages <= 8 * CLIENTS  # Busy, Welcome, Piece, Whole and Changes, and some of them again
    assert joining.most_bytes <= MAP_LIMITS.streams_bytes + MAP_LIMITS.takers_max * MAP_LIMITS.piece_bytes


def test_all_follow_the_other_server_without_a_snapshot(played: tuple[World, dict[str, Phase]]) -> None:
    _, phases = played
    dying = phases["the active server dies"]
    assert dying.messages <= 6 * CLIENTS  # Passive, some times, and Welcome
    assert dying.seconds <= 5.0


def test_the_command_shows_what_each_phase_costs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--clients", "20"]) == 0
    told = capsys.readouterr()
    assert len(told.out.splitlines()) == 9
    assert told.err.startswith("20 clients, ")
