"""Chains of processes that are killed, stopped, cut off and lose disks: see ``chain_soak`` for what is compared."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tests.api.chain_soak import Servers, Soak
from tests.waiting import PATIENCE_S

ROOT: Final = Path(__file__).parent.parent.parent
UNSHARE: Final = ["unshare", "--user", "--map-root-user", "--net", "--mount"]
pytestmark = pytest.mark.process


@pytest.fixture
def soak(tmp_path: Path) -> Iterator[Soak]:
    made = Soak(Servers(tmp_path), seed=1)
    yield made
    made.close()


def test_head_middle_and_tail_die_and_nothing_confirmed_is_lost(soak: Soak) -> None:
    for place in range(3):
        soak.kill_role(place)

    assert soak.check() > 0
    assert soak.done["kills"] == 3


def test_all_servers_are_killed_at_once_and_start_again(soak: Soak) -> None:
    soak.kill_all()
    soak.kill_any()

    assert soak.check() > 0


def test_one_stands_still_longer_than_the_others_wait(soak: Soak) -> None:
    soak.stop(1.5)

    assert soak.check() > 0


def test_a_lost_disk_and_garbage_harm_nobody(soak: Soak) -> None:
    soak.garbage()
    soak.lose_disk()

    assert soak.check() > 0


def can_have_networks() -> bool:
    try:
        words = [*UNSHARE, "sh", "-c", "mount -t tmpfs none /run && ip netns add x && ip link add y type bridge"]
        return subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_have_networks(), reason="no network namespaces here: they take Linux, unshare and ip")
def test_what_is_cut_in_one_direction_goes_on_and_comes_together(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.api.chain_soak import Servers, Soak\n"
        "soak = Soak(Servers(Path(sys.argv[1]), net=True), seed=2)\n"
        "for _ in range(2):\n    soak.cut_one_way(1.5)\n"
        "soak.kill_role(0)\n"
        "print(soak.check())\n"
        "soak.close()\n"
    )
    found = subprocess.run(
        [*UNSHARE, sys.executable, "-c", code, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_S,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3_000:]
    assert int(found.stdout.splitlines()[-1]) > 0
