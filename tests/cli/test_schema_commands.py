"""``chappe schemas``, and ``--codec`` of produce and consume, as processes."""

from __future__ import annotations

import json

import pytest
from tests.cli.conftest import Shell

from chappe.cli.codecs import parse_codec
from chappe.errors import UsageError

pytest.importorskip("fastavro")
pytest.importorskip("jsonschema")

ONE = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}'
OTHER = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'


@pytest.mark.process
def test_from_a_schema_to_a_dead_letter(shell: Shell) -> None:
    shell.up()
    server = shell.start("schemas", "serve", "schemas", "--listen", "127.0.0.1:0", "--json")
    assert server.stdout is not None
    shell.env["CHAPPE_SCHEMAS"] = json.loads(server.stdout.readline())["url"]
    for name, text in (("one.avsc", ONE), ("other.avsc", OTHER)):
        (shell.directory / name).write_text(text)
    missing = shell.run("produce", "t", "--codec", "schema", "{}")
    assert (missing.returncode, b"there is no subject 't-value'" in missing.stderr) == (2, True)
    assert json.loads(shell.run("schemas", "add", "t-value", "one.avsc", "--json").stdout)["id"] == 1
    refused = shell.run("schemas", "add", "t-value", "other.avsc")
    assert (refused.returncode, b"BACKWARD" in refused.stderr) == (1, True)
    assert shell.run("schemas", "check", "t-value", "other.avsc").returncode == 1
    (listed,) = json.loads(shell.run("schemas", "list", "--json").stdout)["subjects"]
    assert (listed["subject"], listed["versions"], listed["type"]) == ("t-value", [1], "AVRO")
    sent = shell.run("produce", "t", "--codec", "schema", '{"a": 1}', '{"a": "x"}', '{"a": 3}')
    assert sent.returncode == 1
    assert b"record 2 of the input" in sent.stderr
    assert b"the 1 record before it is stored" in sent.stderr
    assert shell.run("produce", "t", "garbage").returncode == 0
    found = shell.run("consume", "t", "--codec", "schema", "--until-end", "--output", "raw")
    assert (found.returncode, found.stdout) == (1, b'{"a":1}\n')
    assert b"it is left out" in found.stderr
    found = shell.run("consume", "t", "--codec", "schema", "--until-end", "--output", "raw", "--dead-letter", "dead")
    assert (found.returncode, found.stdout) == (0, b'{"a":1}\n')
    assert shell.run("consume", "dead", "--until-end", "--output", "raw").stdout == b"garbage\n"
    assert shell.run("consume", "t", "--dead-letter", "dead").returncode == 2
    assert shell.run("schemas", "delete", "t-value").returncode == 0
    assert shell.run("schemas", "show", "t-value").returncode == 1
    assert shell.stop(server)[0] == 0


@pytest.mark.parametrize("wrong", ["yaml", "avro:", "avro:missing.avsc", "protobuf:x", "protobuf:missing:m", "json:x"])
def test_a_codec_that_is_none_is_refused(wrong: str) -> None:
    with pytest.raises(UsageError):
        parse_codec(wrong, "t")
