from __future__ import annotations

import json
import os
import platform
import re
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import PATIENCE_S, Shell
from tests.commands import whole_program

from chappe.cli.app import COMMANDS

pytestmark = pytest.mark.process


def test_lines_come_back_as_they_were(shell: Shell) -> None:
    shell.up()
    lines = b"".join(b"line %d \xff\n" % number for number in range(20_000))
    produced = shell.run("produce", "numbers", stdin=lines)
    assert produced.returncode == 0
    assert re.search(rb"stored 20,000 records, .* records/s\)", produced.stderr)

    consumed = shell.run("consume", "numbers", "--until-end", "--output", "raw")
    assert (consumed.returncode, consumed.stdout) == (0, lines)


def test_a_file_of_length_prefixed_records_comes_back(shell: Shell) -> None:
    shell.up()
    raw = b"".join(struct.pack(">I", len(each)) + each for each in (b"a\nb", b"", bytes(100_000)))
    (shell.directory / "records").write_bytes(raw)
    produced = shell.run("produce", "binary", "--file", "records", "--format", "length", "--json")
    facts = json.loads(produced.stdout)
    assert (facts["records"], facts["stored"], facts["bytes"], facts["first"]) == (3, 3, 100_003, 0)
    assert shell.run("consume", "binary", "--until-end", "--output", "length").stdout == raw


def test_bad_json_stops_at_its_line_and_keeps_what_came_before(shell: Shell) -> None:
    shell.up()
    produced = shell.run("produce", "events", "--format", "json", stdin=b'{"a":1}\n[2]\n{oops\n4\n')
    assert produced.returncode == 1
    assert b"line 3 of the input is not JSON" in produced.stderr
    assert b"the 2 records before it are stored" in produced.stderr
    assert shell.run("consume", "events", "--until-end", "--output", "raw").stdout == b'{"a":1}\n[2]\n'


def test_where_to_begin_and_how_many(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "letters", stdin=b"a\nb\nc\nd\n")

    def read(*arguments: str) -> bytes:
        return shell.run("consume", "letters", "--output", "raw", *arguments).stdout

    assert read("--count", "2") == b"a\nb\n"
    assert read("--from", "2", "--until-end") == b"c\nd\n"
    assert read("--from", "10m", "--count", "1") == b"a\n"
    assert read("--from", "2020-01-01", "--until-end") == b"a\nb\nc\nd\n"
    assert read("--from", "latest", "--until-end") == b""
    assert read("--count", "0") == b""


def test_an_offset_that_is_not_there_is_an_error(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "letters", stdin=b"a\nb\n")
    for more in ((), ("--until-end",)):
        consumed = shell.run("consume", "letters", "--from", "7", *more)
        assert (consumed.returncode, consumed.stdout) == (1, b"")
        assert b"offset 7 is not there yet: the last one is 1" in consumed.stderr


def test_json_output_has_the_metadata(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "letters", stdin=b"a\n\xff\n")
    lines = shell.run("consume", "letters", "--until-end", "--json").stdout.splitlines()
    first, second = map(json.loads, lines)
    assert (first["topic"], first["offset"], first["key"], first["value"], first["headers"]) == (
        "letters", 0, None, "a", []
    )  # fmt: skip
    assert second["value"] == {"base64": "/w=="}


def test_following_ends_cleanly_on_sigterm_and_ctrl_c(shell: Shell) -> None:
    shell.up()
    for how in (signal.SIGTERM, signal.SIGINT):
        follower = shell.start("consume", "news", "--output", "raw")
        shell.run("produce", "news", stdin=b"hello\n")
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"hello\n"
        assert shell.stop(follower, how)[0] == 0


def test_a_reader_that_has_enough_makes_no_noise(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "many", stdin=b"x" * 99 + b"\n" + (b"y" * 99 + b"\n") * 100_000)
    process = shell.start("consume", "many", "--output", "raw")
    assert process.stdout is not None
    assert process.stdout.readline() == b"x" * 99 + b"\n"
    process.stdout.close()
    assert process.wait(PATIENCE_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


def test_topics_tells_what_is_held(shell: Shell) -> None:
    store = shell.up()["store"]
    assert b"no topics yet" in shell.run("topics").stdout
    shell.run("produce", "letters", stdin=b"a\nb\n")
    shell.run("produce", "letters", "--identity", "other", stdin=b"c\n")
    shell.run("produce", "numbers", stdin=b"1\n")

    letters, numbers = (json.loads(line) for line in shell.run("topics", "--json").stdout.splitlines())
    assert (letters["topic"], letters["partitions"], letters["records"], letters["head"]) == ("letters", 2, 3, 1)
    assert (numbers["topic"], numbers["records"], numbers["stores"]) == ("numbers", 1, [store])
    assert letters["oldest"] <= letters["newest"]

    parts = [json.loads(line) for line in shell.run("topics", "lett*", "--json", "--partitions").stdout.splitlines()]
    assert sorted(part["records"] for part in parts) == [1, 2]
    table = shell.run("topics").stdout.decode()
    assert re.search(r"letters +2 +3 +1 ", table)
    assert f"({store[:8]}) last had all it keeps read and checked: " in table


def test_an_unknown_topic_is_an_error(shell: Shell) -> None:
    shell.up()
    for arguments in (("consume", "nosuch", "--until-end"), ("topics", "nosuch")):
        done = shell.run(*arguments)
        assert done.returncode == 1
        assert done.stderr.startswith(b"chappe: the store does not have a topic 'nosuch'")


def test_a_misspelt_topic_is_pointed_out(shell: Shell) -> None:
    shell.up()
    shell.run("produce", "greetings", stdin=b"a\n")
    waiting = shell.start("consume", "greatings", "--count", "1", "--output", "raw")
    assert waiting.stderr is not None
    told = "chappe: nobody has a topic 'greatings' yet; 'greetings' is there; still waiting for it\n"
    assert waiting.stderr.readline().decode() == told
    done = shell.run("produce", "greatings", "--timeout", "60", stdin=b"b\n")
    assert done.returncode == 0
    assert done.stderr.endswith(b"the topic 'greatings' is new; 'greetings' is there already\n")
    out, err = waiting.communicate(timeout=PATIENCE_S)
    assert (waiting.returncode, out, err) == (0, b"b\n", b"")
    done = shell.run("consume", "greatings", "--count", "2", "--timeout", "0.5")
    assert done.returncode == 1
    assert b" of 2 records are printed: nothing came for 0.5 s\n" in done.stderr

    text = b"chappe: the store does not have a topic 'gretings'; did you mean 'greetings' or 'greatings'?\n"
    assert shell.run("consume", "gretings", "--until-end").stderr == text
    done = shell.run("topics", "x*")
    assert (done.returncode, done.stdout) == (0, b"")
    assert done.stderr == b"chappe: none of the 2 topics matches 'x*'; `chappe topics` lists all\n"


def test_what_is_not_stored_in_time_fails_with_its_number(shell: Shell) -> None:
    shell.env["CHAPPE_TOWER"] = "127.0.0.1:1"
    done = shell.run("produce", "news", "--timeout", "0.5", stdin=b"a\nb\n")
    assert done.returncode == 1
    assert b"chappe: 0.5 s have passed: 2 of 2 records are not stored\n" in done.stderr


def test_without_a_tower_it_is_said_once_and_tried_on(shell: Shell) -> None:
    with socket.socket() as taken:  # a port on which nothing listens
        taken.bind(("127.0.0.1", 0))
        shell.env["CHAPPE_TOWER"] = f"127.0.0.1:{taken.getsockname()[1]}"
        topics = shell.start("topics")  # both at once: each is patient for seconds
        producer = shell.start("produce", "news")
        assert producer.stdin is not None
        producer.stdin.write(b"a\nb\n")
        producer.stdin.close()
        producer.stdin = None
        assert producer.stderr is not None
        assert b"no tower answers" in producer.stderr.readline()
        assert b"no store has acknowledged the last 2 records; still trying" in producer.stderr.readline()
        code, _, err = shell.stop(producer, signal.SIGINT)
        assert code == 130
        assert "interrupted: 2 of 2 records are not stored" in err
        _, said = topics.communicate(timeout=PATIENCE_S)
        assert topics.returncode == 1
        assert b"no tower answers" in said


def test_sigterm_while_input_is_awaited_keeps_what_was_read(shell: Shell) -> None:
    shell.up()
    producer = shell.start("produce", "news")
    follower = shell.start("consume", "news", "--output", "raw", "--count", "1")
    assert producer.stdin is not None
    producer.stdin.write(b"first\nhalf a li")
    producer.stdin.flush()
    assert follower.communicate(timeout=PATIENCE_S)[0] == b"first\n"
    code, _, err = shell.stop(producer)
    assert code == 143
    assert "terminated: the 1 record read until then is stored" in err


def test_tower_and_store_apart(shell: Shell) -> None:
    tower = shell.start("tower", "--listen", "127.0.0.1:0", "--json")
    assert tower.stdout is not None
    shell.env["CHAPPE_TOWER"] = json.loads(tower.stdout.readline())["tower"]
    store = shell.start("store", "records", "--json")
    assert store.stdout is not None
    assert json.loads(store.stdout.readline())["directory"] == "records"
    if hasattr(os, "SCHED_BATCH"):  # a store gives way to whom it serves
        assert {os.sched_getscheduler(int(each)) for each in os.listdir(f"/proc/{store.pid}/task")} == {os.SCHED_BATCH}
    assert shell.run("produce", "news", stdin=b"a\n").returncode == 0

    code, _, err = shell.stop(store)
    assert (code, err.splitlines()[-1][:20]) == (0, "store stopped; since")
    assert shell.stop(tower, signal.SIGINT)[0] == 0


def test_a_directory_in_use_and_a_port_in_use_are_one_line(shell: Shell) -> None:
    facts = shell.up("records")
    done = shell.run("store", "records")
    assert done.returncode == 1
    assert done.stderr.startswith(b"chappe: ")
    assert done.stderr.count(b"\n") == 1

    done = shell.run("tower", "--listen", facts["tower"])
    assert done.returncode == 1
    assert b"in use" in done.stderr
    assert done.stderr.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("produce",), "Missing argument"),
        (("produce", ""), "a topic needs a name"),
        (("produce", "t", "--file", "nofile"), "cannot read nofile: No such file"),
        (("produce", "t", "--format", "xml"), "lines"),
        (("produce", "t", "--min-acks", "-1"), "min-acks"),
        (("consume", "t", "--from", "soon"), "'soon' is not a place to begin"),
        (("consume", "t", "--from", "2999-01-01"), "is in the future"),
        (("tower", "--listen", "nowhere:port"), "is not the address of a tower"),
        (("up", "--config", "x"), "No such option"),
        (("--config", "nofile", "topics"), "there is no configuration file nofile"),
        (("demo", "--input", "nofile"), "there is no file nofile"),
        (("nonsense",), "nonsense"),
    ],
)
def test_wrong_use_is_told_with_exit_code_2(shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    done = shell.run(*arguments)
    assert done.returncode == 2
    assert told in done.stderr.decode()


def test_options_come_from_command_line_environment_file_and_default_in_this_order(shell: Shell) -> None:
    def tower() -> dict[str, str]:
        rows = json.loads(shell.run("config", "--json").stdout)["settings"]
        return next({"value": row["value"], "source": row["source"]} for row in rows if row["key"] == "tower")

    assert tower() == {"value": "127.0.0.1:5556", "source": "default"}
    (shell.directory / "chappe.toml").write_text("tower = '127.0.0.1:1'\n[consume]\noutput = 'raw'\n")
    assert tower() == {"value": "127.0.0.1:1", "source": "chappe.toml"}
    facts = shell.up()  # the command line wins over the file
    assert shell.env["CHAPPE_TOWER"] == facts["tower"]  # the environment wins over the file
    assert tower() == {"value": facts["tower"], "source": "CHAPPE_TOWER"}
    assert shell.run("produce", "t", stdin=b"a\n").returncode == 0
    assert shell.run("consume", "t", "--until-end").stdout == b"a\n"  # the output is the file's
    assert shell.run("consume", "t", "--until-end", "--json").stdout.startswith(b"{")


def test_a_corrupt_configuration_file_names_its_line(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text("tower = 'x'\nlisten =\n")
    done = shell.run("topics")
    assert done.returncode == 2
    assert done.stderr.startswith(b"chappe: chappe.toml, line 2: ")


def test_retention_comes_from_the_file(shell: Shell) -> None:
    (shell.directory / "chappe.toml").write_text("[retention.'short.*']\nrecords = 1\nage = '1h'\n")
    told = json.loads(shell.run("config", "--json").stdout)
    assert told["retention"] == [{"topics": "short.*", "age_s": 3600.0, "bytes": None, "records": 1}]
    shell.up()
    assert shell.run("produce", "short.lived", stdin=b"a\n").returncode == 0


def test_doctor_passes_here_and_fails_where_something_is_wrong(shell: Shell, tmp_path: Path) -> None:
    facts = shell.up()
    done = shell.run("doctor", "--json")
    checks = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, checks
    assert {check["name"] for check in checks} >= {
        "python",
        "compiled",
        "zeromq",
        "port",
        "clock",
        "disk",
        "sync",
        "java",
    }
    assert [check["found"] for check in checks if check["name"] == "port"] == [
        f"127.0.0.1:{port}: a tower answers" for port in facts["tower"].split(":")[1:]
    ]

    with socket.create_server(("127.0.0.1", 0)) as other:
        (tmp_path / "file").touch()
        tower = f"127.0.0.1:{other.getsockname()[1]}"
        done = shell.run("doctor", str(tmp_path / "file" / "x"), "--tower", tower, "--listen", "192.0.2.1", "--json")
    assert done.returncode == 1
    failed = {
        check["name"]: check for check in map(json.loads, done.stdout.splitlines()) if check["status"] == "failed"
    }
    assert set(failed) >= {"port", "directory", "interface"}
    assert all(check["mend"] for check in failed.values())


def test_version_help_and_completion(shell: Shell) -> None:
    first, python, compiled, *extras = shell.run("--version").stdout.decode().splitlines()
    assert re.fullmatch(r"chappe \d+\.\d+\.\d+\S*", first)
    assert python.startswith(f"{platform.python_implementation()} {platform.python_version()}, ")
    assert re.match(r"compiled parts: libzmq 4\.\d\.\d with CURVE, CRC-32C in (hard|soft)ware, SQLite 3\.", compiled)
    assert re.search(r"; chappe itself: (Python alone|\d+ modules compiled \(.*\bdata\b.*\))$", compiled)
    assert extras[0].startswith("extras: arrow, ")
    told = shell.run("--help").stdout.decode()
    for command in ("demo", "up", "tower", "store", "produce", "consume", "topics", "doctor"):
        assert command in told
        assert shell.run(command, "--help").returncode == 0
    assert "--install-completion" in told


def test_a_command_loads_its_own_module_and_no_other(shell: Shell) -> None:
    code = (
        "import sys\nfrom chappe.cli.app import COMMANDS, app\n"
        "try: app(sys.argv[1:])\nexcept SystemExit: pass\n"
        "places = {f'chappe.cli.{place.rpartition(\".\")[0]}' for place, _ in COMMANDS.values()}\n"
        "print(sorted(places & set(sys.modules)), file=sys.stderr)"
    )

    def loaded(*arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, env=shell.env, capture_output=True, check=True).stderr.decode().strip()

    assert loaded("--version") == loaded("--help") == "[]"
    assert loaded("produce", "--help") == "['chappe.cli.config', 'chappe.cli.produce']"  # config has the file's values


def test_lines_of_the_help_are_those_of_the_commands() -> None:
    lines = {name: line for name, (_, line) in COMMANDS.items()}
    loaded = whole_program().commands
    assert {each.name: " ".join(each.help.split("\n\n")[0].split()) for each in loaded.values()} == lines


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("chappe tow", ["tower"]), ("chappe kv pu", ["put"]), ("chappe tower --log-l", ["--log-level"])],
)
def test_commands_and_options_complete(shell: Shell, typed: str, completed: list[str]) -> None:
    shell.env |= {"_CHAPPE_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    assert shell.run().stdout.decode().split() == completed


def test_help_and_version_load_nothing_heavy(shell: Shell) -> None:
    code = (
        "import sys\nfrom chappe.cli.app import app\n"
        "try: app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'zmq', 'pyarrow', 'pandas', 'pyspark', 'psutil', 'asyncio', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=shell.env, capture_output=True, check=True)
    assert done.stderr.decode().strip() == "[]"
    code = "import sys, chappe; chappe.Consumer, chappe.Producer, chappe.Endpoint; print('asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=shell.env, capture_output=True, check=True)
    assert done.stdout.decode().strip() == "False"  # a tenth of the time that it takes
