from __future__ import annotations

from pathlib import Path

import pytest

from chappe.cli.config import SETTINGS, Config, RetentionRule, load
from chappe.errors import ConfigError


def parsed(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "chappe.toml"
    path.write_text(text)
    return load(str(path))


def problem(tmp_path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(tmp_path, text)
    told = str(caught.value)
    assert told.startswith(str(tmp_path / "chappe.toml"))
    assert "\n" not in told
    return told.removeprefix(str(tmp_path / "chappe.toml") + ", ")


def test_every_setting_can_stand_in_the_file(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        """
        tower = "10.0.0.1:6000"
        listen = "10.0.0.2"
        forwarders = "a,b:7000"
        identity = "keys/me"
        audit = "refused"
        schemas = "https://c:8081"
        [store]
        directory = "/data"
        [forward]
        at = "*:7000"
        peers = "b"
        directory = "/passed"
        originals = "e"
        tap = 7070
        [map]
        servers = "c,d:7003"
        at = "*:7006"
        [produce]
        format = "json"
        min_acks = 2
        [consume]
        from = 17
        output = "raw"
        [demo]
        directory = "there"
        [log]
        verbose = true
        file = "chappe.log"
        level = "chappe=info"
        format = "json"
        [mesh]
        listen = ["*:7010", ":0"]
        peers = ["f", "g:7011"]
        retry_s = 2
        retry_max_s = 30.5
        attempts = 7
        forwarding = false
        forward = ["/zeek/", "/a,b"]
        paths = 2
        on_full = "disconnect"
        peer_messages_max = 100
        peer_bytes_max = "2MiB"
        heartbeat_s = 0.5
        last_values = 100
        recording_directory = "shapes"
        output_generator_file_cap = 9
        [node]
        websocket = 8080
        origins = ["https://example.org"]
        tap = "127.0.0.1:7071"
        [subscribe]
        on_full = "block"
        messages_max = 10
        bytes_max = 1000
        max_age = "10s"
        on_stale = "drop"
        """,
    )
    assert found.values == {
        "tower": "10.0.0.1:6000",
        "listen": "10.0.0.2",
        "forwarders": "a,b:7000",
        "identity": "keys/me",
        "audit": "refused",
        "schemas": "https://c:8081",
        "store.directory": "/data",
        "forward.at": "*:7000",
        "forward.peers": "b",
        "forward.directory": "/passed",
        "forward.originals": "e",
        "forward.tap": "7070",
        "map.servers": "c,d:7003",
        "map.at": "*:7006",
        "produce.format": "json",
        "produce.min_acks": "2",
        "consume.from": "17",
        "consume.output": "raw",
        "demo.directory": "there",
        "log.verbose": "True",
        "log.file": "chappe.log",
        "log.level": "chappe=info",
        "log.format": "json",
        "mesh.listen": ["*:7010", ":0"],
        "mesh.peers": ["f", "g:7011"],
        "mesh.retry_s": 2.0,
        "mesh.retry_max_s": 30.5,
        "mesh.attempts": 7,
        "mesh.forwarding": False,
        "mesh.forward": ["/zeek/", "/a,b"],
        "mesh.paths": 2,
        "mesh.on_full": "disconnect",
        "mesh.peer_messages_max": 100,
        "mesh.peer_bytes_max": 2 << 20,
        "mesh.heartbeat_s": 0.5,
        "mesh.last_values": 100,
        "mesh.recording_directory": "shapes",
        "mesh.output_generator_file_cap": 9,
        "node.websocket": "8080",
        "node.origins": ["https://example.org"],
        "node.tap": "127.0.0.1:7071",
        "subscribe.on_full": "block",
        "subscribe.messages_max": 10,
        "subscribe.bytes_max": 1000,
        "subscribe.max_age": "10s",
        "subscribe.on_stale": "drop",
    }
    assert set(found.values) == {setting.key for setting in SETTINGS}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert parsed(tmp_path, "").values == {}


def test_retention_rules_keep_their_order(tmp_path: Path) -> None:
    found = parsed(
        tmp_path,
        """
        [retention."metrics.*"]
        age = "7d"
        bytes = "10GiB"
        records = 1000000
        [retention."*"]
        bytes = 5000
        """,
    )
    assert found.retention == (
        RetentionRule("metrics.*", 7 * 86400.0, 10 * 2**30, 1_000_000),
        RetentionRule("*", None, 5000, None),
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('tower = "a"\nlisten = \n', "line 2: Invalid value"),
        ("[store]\ndirectory = 'x", "line 2: "),
        ("towr = 'x'", "line 1: unknown key 'towr'; did you mean 'tower'?"),
        ("[stor]\ndirectory = 'x'", "line 1: unknown section 'stor'; did you mean 'store'?"),
        ("\n[produce]\nmin_ack = 1", "line 3: unknown key 'produce.min_ack'; did you mean 'min_acks'?"),
        ("[demo]\nzebra = 1", "line 2: unknown key 'demo.zebra'; known here: directory"),
        ("produce.min_acks = 'two'", "line 1: produce.min_acks: Expected whole number, got text"),
        ("[produce]\nformat = 'lines'\nmin_acks = -1", "line 3: produce.min_acks: "),
        ("[produce]\nformat = 'xml'", "line 2: produce.format: Invalid enum value 'xml'"),
        ("[consume]\nfrom = 'somewhere'", "line 2: consume.from: 'somewhere' is not a place to begin"),
        ("[store]\n[retention.'a*']\nage = 'long'", "line 3: retention.a*.age: 'long' is not an age"),
        ("[retention]\n'a.*' = {bytes = 'x'}", "line 2: retention.a.*.bytes: 'x' is not a size"),
        (
            "[retention.'a.*']\nrecords = 1.5",
            "line 2: retention.a.*.records: Expected whole number, got decimal number",
        ),
        ("[retention.'a*']\nrecord = 5", "line 2: unknown key 'retention.a*.record'; did you mean 'records'?"),
        ("tower = 5", "line 1: tower: Expected text, got whole number"),
        ("store = 5", "line 1: store: Expected section, got whole number"),
        ("retention = 5", "line 1: retention: Expected section, got whole number"),
        ("[retention]\na = 5", "line 2: retention.a: Expected section, got whole number"),
        ("mesh = 5", "line 1: mesh: Expected section, got whole number"),
        ("[mesh]\nretries = 5", "line 2: unknown key 'mesh.retries'; did you mean 'retry_s'?"),
        ("[mesh]\n\nretry_s = 0", "line 3: mesh.retry_s: 0.0 is not a number of seconds above 0"),
        ("[mesh]\nheartbeat_s = inf", "line 2: mesh.heartbeat_s: inf is not a number of seconds above 0"),
        ("[mesh]\nattempts = 0", "line 2: mesh.attempts: 0 is not a whole number of at least 1"),
        ("[mesh]\npaths = 3", "line 2: mesh.paths: 3 is not a whole number from 1 to 2"),
        ("[mesh]\npeers = 'a'", "line 2: mesh.peers: Expected "),
        ("[mesh]\npeers = ['a', ':x']", "line 2: mesh.peers: ':x' is not an address: HOST:PORT is wanted"),
        ("[mesh]\non_full = 'explode'", "line 2: mesh.on_full: Invalid enum value 'explode'"),
        ("[mesh]\npeer_bytes_max = '1 sack'", "line 2: mesh.peer_bytes_max: '1 sack' is not a size"),
        ("[mesh]\npeer_bytes_max = 0", "line 2: mesh.peer_bytes_max: a bound of bytes is at least 1"),
        ("[mesh]\nrecording_directory = ''", "line 2: mesh.recording_directory: '' is not a path"),
        ("[node]\ntap = 'x:y'", "line 2: node.tap: 'x:y' is not an address"),
        ("[subscribe]\non_full = 'disconnect'", "line 2: subscribe.on_full: 'disconnect' is none of block, "),
        ("[subscribe]\nmax_age = 'old'", "line 2: subscribe.max_age: 'old' is not an age"),
    ],
)
def test_a_wrong_file_names_line_and_key(tmp_path: Path, text: str, told: str) -> None:
    assert problem(tmp_path, text).startswith(told)


def test_bytes_that_are_no_text_name_their_line(tmp_path: Path) -> None:
    path = tmp_path / "chappe.toml"
    path.write_bytes(b"tower = 'x'\n\xff\xfe")
    with pytest.raises(ConfigError, match="line 2: not UTF-8"):
        load(str(path))


def test_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "chappe.toml"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(ConfigError, match="not a configuration file"):
        load(str(path))


def test_a_missing_file_that_was_asked_for_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no configuration file"):
        load(str(tmp_path / "none.toml"))


def test_the_current_directory_comes_before_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert load().path is None

    import platformdirs

    users = platformdirs.user_config_path("chappe")
    users.mkdir(parents=True)
    (users / "chappe.toml").write_text("tower = 'users'")
    assert load().values["tower"] == "users"

    Path("chappe.toml").write_text("tower = 'here'")
    assert load().values["tower"] == "here"
