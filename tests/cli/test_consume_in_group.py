"""``chappe consume --group --until-end``: the end is the whole group's."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_S, until

from chappe import Consumer, Producer, Store, Tower

pytestmark = pytest.mark.process


def test_a_member_without_a_share_stands_by_until_the_group_is_at_the_end(shell: Shell, tmp_path: Path) -> None:
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "store", tower=tower.address):
        with Producer("t", tower=tower.address) as producer:
            producer.send_many(["a", "b", "c"])
        command = ("consume", "t", "--group", "g", "--until-end", "--output", "raw", "--tower", tower.address)
        with Consumer("t", group="g", tower=tower.address, auto_commit=False) as first:
            assert [record.value for record in first.to_end(PATIENCE_S)] == [b"a", b"b", b"c"]
            key = ("t", producer.partition)
            first.commit({key: 1})
            standby = shell.start(*command)
            crew = first._core.group
            assert crew is not None
            until(lambda: standby.poll() is not None or (first.poll(0.05) is None and len(crew.members) == 2))
            assert first.group_position() == {key: 3}
            assert standby.poll() is None, "it ended though nobody has committed the rest"
        assert standby.communicate(timeout=PATIENCE_S) == (b"b\nc\n", b"")
        assert standby.returncode == 0
        assert shell.run(*command).stdout == b""
