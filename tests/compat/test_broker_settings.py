"""What ``chappe.compat.broker`` takes from ``broker.conf`` and from the original's environment variables."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.waiting import PATIENCE_S

from chappe import Endpoint
from chappe.compat import broker
from chappe.compat.broker.settings import FILE_BYTES_MAX, parse
from chappe.errors import ConfigError, UsageError


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def made_with(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The arguments of endpoints that are made."""
    found: list[dict[str, Any]] = []

    def make(**arguments: Any) -> Endpoint:
        found.append(arguments)
        return Endpoint(**arguments)

    monkeypatch.setattr("chappe.compat.broker.endpoint.MeshEndpoint", make)
    return found


def configured(here: Path, text: str) -> broker.Configuration:
    (here / "broker.conf").write_text(text)
    return broker.Configuration()


def test_the_file_sets_what_means_something_here(here: Path, made_with: list[dict[str, Any]]) -> None:
    found = configured(
        here,
        """
        # the outer broker
        broker {
          disable-forwarding = true, ttl = 20
          ssl { cafile = "/ca.pem"
                certificate = '/own.pem' }
          ssl.key = "/own\\\\key.pem"
        }
        broker.disable-ssl = true ; no keys yet
        """,
    )
    assert (found.options.disable_ssl, found.options.disable_forwarding) == (True, True)
    assert (found.openssl_cafile, found.openssl_certificate) == ("/ca.pem", "/own.pem")
    assert found.openssl_key == "/own\\key.pem"
    with broker.Endpoint(found):
        assert made_with == [{"security": "plain", "forwarding": False}]


def test_bounds_and_recordings_reach_the_endpoint(
    here: Path, monkeypatch: pytest.MonkeyPatch, made_with: list[dict[str, Any]]
) -> None:
    found = configured(
        here,
        "broker { disable-ssl = true, peer-buffer-size = 77, peer-overflow-policy = 'drop_oldest'\n"
        "  recording-directory = 'of-file', output-generator-file-cap = 3 }",
    )
    with broker.Endpoint(found):
        assert (here / "of-file").is_dir()
    wanted = {"security": "plain", "forwarding": True, "peer_messages_max": 77, "on_full": "drop_oldest"}
    assert made_with == [wanted | {"recording_directory": "of-file", "output_generator_file_cap": 3}]
    monkeypatch.setenv("BROKER_RECORDING_DIRECTORY", "2026")
    monkeypatch.setenv("BROKER_OUTPUT_GENERATOR_FILE_CAP", "2")
    with broker.Endpoint(broker.Configuration()):
        assert (here / "2026").is_dir()
    assert made_with[1] == wanted | {"recording_directory": "2026", "output_generator_file_cap": 2}


def test_the_file_is_not_read_where_the_program_says_so(here: Path) -> None:
    (here / "broker.conf").write_text("this is not one")
    assert broker.Configuration(broker.BrokerOptions(ignore_broker_conf=True)).options.disable_ssl is False
    with pytest.raises(ConfigError):
        broker.Configuration()


def test_what_is_not_known_here_is_told_in_one_line(
    here: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("BROKER_METRICS_PORT", "9999/tcp")
    configured(here, "caf { scheduler { max-threads = 4 } }\nbroker.ttl = 20\n")
    assert [each.getMessage() for each in caplog.records] == [
        "settings of the original without a meaning here: caf.scheduler.max-threads, broker.ttl, BROKER_METRICS_PORT"
    ]
    caplog.clear()
    configured(here, "".join(f"x.y{number} = 1\n" for number in range(1000)))
    assert len(caplog.records) == 1
    assert caplog.records[0].getMessage().endswith("x.y19 and 981 more")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("broker {\n  disable-ssl = maybe\n}", "line 2: a value is wanted, not 'maybe'"),
        ("broker {\n  disable-ssl = 1\n}", "line 2: broker.disable-ssl: 1 is not true or false"),
        ("\nbroker {", "line 2: the section broker is not closed"),
        ("a = 1\nb =\n\n", "line 2: a value is wanted, not 'the end'"),
        ("}", "line 1: a setting is wanted, not '}'"),
        ("a = 1\nb 2", "line 2: = or { is wanted after b"),
        ("a = 1\n\na = 2", "line 3: a was set in line 1 already"),
        ("a = [1, 2\nb = 3", "line 2: , or ] is wanted, not 'b'"),
        ("a = 'x", 'line 1: "\'x" cannot be read'),
        ("a = \x1b[2J", "line 1: '\\x1b[2J' cannot be read"),
        ("x {" * 20, "more than 8 sections"),
        ("a = " + "[" * 20, "more than 8 lists"),
        ("9a = 1", "line 1: '9a' is not the name of a setting"),
        ("logger.console-verbosity = 'loud'", "line 1: logger.console-verbosity: 'loud' is not one of trace, debug"),
        ("broker.peer-buffer-size = -1", "-1 is not a number of messages, at least 1"),
        ("#" * (FILE_BYTES_MAX + 1), "larger than 65536 bytes"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused(here: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        configured(here, text)
    assert problem in str(caught.value)
    assert str(caught.value).startswith("broker.conf")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("variable", "value"),
    [("BROKER_CONSOLE_VERBOSITY", "loud"), ("BROKER_FILE_VERBOSITY", "9"), ("BROKER_OUTPUT_GENERATOR_FILE_CAP", "-1")],
)
def test_a_wrong_variable_is_named(here: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable):
        broker.Configuration()


@given(st.text(alphabet="ab.-={}[],'\"# \n019\\;", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        lines = [line for _, line in parse(text).values()]
    except ConfigError as error:
        lines = [int(str(error).removeprefix("broker.conf, line ").partition(":")[0])]
    assert all(1 <= line <= text.count("\n") + 1 for line in lines)


PROGRAM = """
from chappe.compat import broker
options = broker.BrokerOptions(disable_ssl=True)
with broker.Endpoint(broker.Configuration(options)) as one, broker.Endpoint(broker.Configuration(options)) as other:
    other.peer("127.0.0.1", one.listen("127.0.0.1", 0))
"""


def run(here: Path, **variables: str) -> str:
    env = os.environ | variables
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=here, env=env, capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return done.stderr.decode()


def test_variables_make_it_tell_more(here: Path) -> None:
    assert run(here) == ""
    said = run(here, BROKER_CONSOLE_VERBOSITY="info")
    assert "info chappe.mesh [" in said
    assert "peered with" in said
    assert "connection 1" not in said
    assert "connection 1 comes from" in run(here, BROKER_CONSOLE_VERBOSITY="debug")


def test_the_file_makes_it_tell_more_and_variables_count_more(here: Path) -> None:
    (here / "broker.conf").write_text("logger {\n  ; note the single quotes!\n  console-verbosity = 'info'\n}\n")
    assert "peered with" in run(here)
    assert run(here, BROKER_CONSOLE_VERBOSITY="quiet") == ""


def test_a_file_gets_more_detail(here: Path) -> None:
    assert run(here, BROKER_FILE_VERBOSITY="debug") == ""
    (made,) = here.glob("broker_*.log")
    assert stat.S_IMODE(made.stat().st_mode) == 0o600
    text = made.read_text()
    assert "debug chappe.runtime.mesh_ports [" in text
    assert "info chappe.mesh [" in text


def test_without_settings_the_log_is_left_alone(here: Path) -> None:
    root = logging.getLogger("chappe")
    before = root.level, list(root.handlers)
    with broker.Endpoint(broker.Configuration()):
        assert (root.level, root.handlers) == before
    assert list(here.iterdir()) == []
