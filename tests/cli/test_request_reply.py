"""``chappe request`` and ``chappe reply`` as real processes."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Shell
from tests.waiting import PATIENCE_S, until

from chappe import Endpoint

pytestmark = pytest.mark.process


def test_a_program_answers_and_its_failure_is_the_answer(shell: Shell) -> None:
    with Endpoint() as relay:
        peer = f"127.0.0.1:{relay.listen()}"
        nobody = shell.run("request", "double/", "4", "--peer", peer)
        assert (nobody.returncode, nobody.stdout) == (1, b"")
        assert b"nobody in reach subscribes to 'double/'" in nobody.stderr
        program = "sh -c 'read line; test $line -gt 0 && expr $line \\* 2'"
        replying = shell.start("reply", "double/", "--command", program, "--queue", "q", "--count", "3", "--peer", peer)
        until(lambda: b"double/" in relay.core.peer_subscriptions())
        asked = ("request", "double/", "--peer", peer)
        assert shell.run(*asked, "4", "--timeout", "60").stdout == b"8\n"
        found = shell.run(*asked, "5", "--answers", "1", "--json", "--timeout", "60")
        assert json.loads(found.stdout)["value"] == {"@data-type": "integer", "data": 10}
        failed = shell.run(*asked, "--timeout", "60", "0")
        assert (failed.returncode, failed.stdout, failed.stderr) == (1, b"", b"chappe: sh: exit code 1\n")
        _, said = replying.communicate(timeout=PATIENCE_S)
        assert (replying.returncode, said) == (0, b"double/: sh failed: exit code 1\n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("reply", "t"), b"give either a VALUE or --command"),
        (("reply", "t", "x", "--command", "cat"), b"give either a VALUE or --command"),
        (("reply", "t", "--command", ""), b"names no program"),
        (("reply", "t", "--command", "nosuchprogram x"), b"there is no program 'nosuchprogram'"),
        (("reply", "t", "--command", "'"), b"No closing quotation"),
    ],
)
def test_wrong_use_is_said_before_anybody_is_dialled(shell: Shell, arguments: tuple[str, ...], said: bytes) -> None:
    done = shell.run(*arguments)

    assert (done.returncode, done.stdout) == (2, b"")
    assert said in done.stderr
