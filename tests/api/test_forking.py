"""What becomes of members when the process forks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.api import forking
from tests.waiting import PATIENCE_S

from chappe.errors import Forked
from chappe.system.forking import _PARENTS, _unusable, left_behind


@pytest.mark.process
def test_members_belong_to_the_parent_which_goes_on_unharmed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.api.forking", str(tmp_path)],
        cwd=Path(forking.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


class Shared:
    """Whatever a member may be."""

    def __init__(self) -> None:
        self.value = 1

    def use(self) -> int:
        return self.value

    def __iter__(self) -> Iterator[int]:
        return iter(())

    def __len__(self) -> int:
        return self.value

    def close(self) -> None:
        self.value = 0

    def __enter__(self) -> Shared:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_child(made: Shared) -> Shared:
    made.__class__ = _unusable(Shared, _PARENTS, left_behind)  # as it is done right after a fork
    return made


@pytest.mark.parametrize(
    "use", [len, iter, Shared.use, lambda made: made.__enter__(), lambda made: setattr(made, "value", 2)]
)
def test_every_use_in_the_child_says_so(use: Callable[[Shared], object]) -> None:
    with pytest.raises(Forked, match="this shared was made before the process forked"):
        use(in_child(Shared()))


def test_what_was_kept_of_it_says_so_too() -> None:
    made = Shared()
    kept = made.use
    in_child(made)
    with pytest.raises(Forked):
        kept()


def test_a_with_that_is_open_ends_in_silence_and_hides_no_error() -> None:
    made = Shared()

    def fork_within() -> None:
        with made:
            in_child(made)
            raise KeyError

    with pytest.raises(KeyError):
        fork_within()
    made.close()
    assert object.__getattribute__(made, "value") == 1
    assert isinstance(made, Shared)
    assert repr(made) == "<Shared of the process before the fork>"
