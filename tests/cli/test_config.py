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
        """,
    )
    assert found.values == {
        "tower": "10.0.0.1:6000",
        "listen": "10.0.0.2",
        "forwarders": "a,b:7000",
        "identity": "keys/me",
        "audit": "refused",
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
