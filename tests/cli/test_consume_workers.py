"""``chappe consume --exec``: as its users run it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.waiting import until

from chappe import Producer

pytestmark = pytest.mark.process

KEEP = 'sh -c \'while read -r line; do printf "%s\\n" "$line" >> lines-$CHAPPE_WORKER; echo ok; done\''


def send(shell: Shell, *values: str) -> None:
    with Producer("t", tower=shell.env["CHAPPE_TOWER"]) as producer:
        for number, value in enumerate(values):
            producer.send(value, key=f"k{number % 5}")
        producer.flush(PATIENCE_S)


def done(directory: Path) -> list[str]:
    lines = [line for path in directory.glob("lines-*") for line in path.read_text().splitlines()]
    return [json.loads(line)["value"] for line in lines]


def test_a_program_has_all_records_and_goes_on_after_them(shell: Shell) -> None:
    shell.up()
    send(shell, *map(str, range(20)))
    command = ("consume", "t", "--workers", "4", "--exec", KEEP, "--until-end", "--identity", "me")
    found = shell.run(*command)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"20 records are done\n")
    assert sorted(map(int, done(shell.directory))) == list(range(20))
    send(shell, "more")
    assert shell.run(*command).stderr == b"1 record is done\n"


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_follows_until_it_is_stopped(shell: Shell, how: signal.Signals) -> None:
    shell.up()
    send(shell, "1", "2")
    process = shell.start("consume", "t", "--exec", KEEP, "--identity", "me")
    until(lambda: len(done(shell.directory)) == 2)
    assert shell.stop(process, how) == (0, "", "2 records are done\n")
    assert (
        shell.run("consume", "t", "--exec", KEEP, "--identity", "me", "--until-end").stderr == b"0 records are done\n"
    )


def test_programs_are_not_told_the_passphrase_of_our_keys(shell: Shell) -> None:
    shell.up()
    send(shell, "1")
    shell.env |= {"CHAPPE_KEY_PASSPHRASE": "secret", "CHAPPE_DASHBOARD_TOKEN": "sixteen-characters"}
    program = "sh -c 'env > told-$CHAPPE_WORKER; while read -r line; do echo ok; done'"
    shell.run("consume", "t", "--workers", "1", "--exec", program, "--until-end")

    told = "".join(each.read_text() for each in shell.directory.glob("told-*"))
    assert "CHAPPE_WORKER=" in told
    assert "secret" not in told
    assert "sixteen" not in told


def test_a_record_that_no_worker_does_ends_it(shell: Shell) -> None:
    shell.up()
    send(shell, "1", "poison")
    program = "sh -c 'while read -r line; do case $line in *poison*) exit 9;; esac; echo ok; done'"
    found = shell.run("consume", "t", "--workers", "1", "--exec", program, "--until-end")
    assert found.returncode == 1
    *_, summary, error = found.stderr.decode().splitlines()
    assert summary.startswith("1 record is done")
    assert error.startswith("chappe: 3 workers in a row did not get done with the record at offset 1 of topic 't'")
    assert error.endswith("; the last one: ended with exit code 9")


def test_what_a_program_gets_is_what_output_says(shell: Shell) -> None:
    shell.up()
    send(shell, "one", "two")
    program = "sh -c 'while read -r line; do echo $line >> values; echo ok; done'"
    shell.run("consume", "t", "--workers", "1", "--exec", program, "--until-end", "--output", "raw")
    assert (shell.directory / "values").read_text().split() == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--workers", "2"], "--workers is for workers, which --exec names"),
        (["--identity", "me"], "--identity is for workers"),
        (["--exec", "cat", "--count", "2"], "--count does not go with --exec"),
        (["--exec", "cat", "--timeout", "2"], "--timeout goes with --exec only where --until-end does"),
        (["--exec", "sh -c 'x"], "No closing quotation"),
        (["--exec", ""], "a program is a list of texts"),
        (["--exec", "/no/such/program"], "there is no program '/no/such/program'"),
    ],
)
def test_what_does_not_go_together(shell: Shell, options: list[str], text: str) -> None:
    found = shell.run("consume", "t", *options)
    assert found.returncode == 2
    assert text in found.stderr.decode()


def test_an_unknown_topic_has_no_end(shell: Shell) -> None:
    shell.up()
    found = shell.run("consume", "nothing", "--exec", "cat", "--until-end")
    assert found.returncode == 1
    assert b"nothing" in found.stderr
