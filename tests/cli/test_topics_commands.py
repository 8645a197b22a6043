"""``chappe topics``: the list without a subcommand, and topics that are shown and changed with one."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cli.conftest import Shell

pytestmark = pytest.mark.process


def test_topics_are_listed_made_set_trimmed_and_deleted(shell: Shell) -> None:
    store = shell.up()["store"]
    shell.run("produce", "orders", stdin=b"1\n2\n")

    def told(*arguments: str) -> Any:
        done = shell.run("topics", *arguments, "--json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    assert told() == told("list") == told("orders")
    assert [each["records"] for each in told()] == [2]
    (made,) = told("create", "invoices", "--age", "7d", "--records", "10")
    assert (made["stores"], made["away"], made["refused"]) == ([store], [], {})
    assert [(each["topic"], each["records"]) for each in told()] == [("invoices", 0), ("orders", 2)]
    told("set", "orders", "--bytes", "10GB")
    (shown,) = told("show", "orders")
    assert shown["retention"] == {store: {"age_s": None, "bytes": 10_000_000_000, "records": None}}
    (listed,) = told("config")
    assert {each["topic"]: each["settings"] for each in listed["topics"]} == {
        "invoices": {"retention_s": 604800.0, "retention_records": 10},
        "orders": {"retention_bytes": 10_000_000_000},
    }
    assert b"invoices" in shell.run("topics", "config").stdout
    assert b"written by" in shell.run("topics", "show", "orders").stdout

    refused = shell.run("topics", "delete", "orders")
    assert refused.returncode == 2
    assert b"give --yes" in refused.stderr
    assert [each["records"] for each in told("orders")] == [2]
    (trimmed,) = told("trim", "orders", "--before", "0s", "--yes")
    assert trimmed["records"] == 2
    assert b"orders is deleted at 1 store" in shell.run("topics", "delete", "orders", "--yes").stderr
    assert [each["topic"] for each in told()] == ["invoices"]
    unknown = shell.run("topics", "show", "invoice")
    assert unknown.returncode == 1
    assert b"did you mean 'invoices'?" in unknown.stderr
    assert shell.run("topics", "set", "invoices").returncode == 2
    told("set", "invoices", "--unset")
    assert told("show", "invoices")[0]["settings"] == {}
