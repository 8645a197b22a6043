from __future__ import annotations

import os
import socket
from pathlib import Path

import msgspec
import platformdirs
import pytest
from tests.ports import free_address
from tests.waiting import PATIENCE_S

from chappe import Consumer, Keys, Producer, Store, Tower, list_topics, read_topic
from chappe.cli.config import SCHEMA
from chappe.errors import ConfigError, TimedOut, UsageError
from chappe.spark.options import place_of
from chappe.system import settings
from chappe.system.toml import Everything
from chappe.transports.gate import keys_of


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory and a home without any settings."""
    for name in [each for each in os.environ if each.startswith("CHAPPE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def users() -> Path:
    found = platformdirs.user_config_path("chappe")
    found.mkdir(parents=True)
    return found / "chappe.toml"


def test_an_argument_comes_before_the_environment_before_the_file_before_the_default(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert settings.tower() == "127.0.0.1:5556"
    assert settings.listen() == "127.0.0.1"
    assert settings.identity() is None
    users().write_text('tower = "of-user:1"\n')
    assert settings.tower() == "of-user:1"
    (here / "chappe.toml").write_text('tower = "of-directory:1"\nlisten = "10.0.0.7"\nidentity = "keys/me"\n')
    assert settings.tower() == "of-directory:1"
    assert settings.listen() == "10.0.0.7"
    assert keys_of(None) == Keys("keys/me")
    (here / "other.toml").write_text('tower = "of-other:1"\n')
    monkeypatch.setenv("CHAPPE_CONFIG", "other.toml")
    assert settings.tower() == "of-other:1"
    monkeypatch.setenv("CHAPPE_TOWER", "of-environment:1")
    assert settings.tower() == "of-environment:1"
    assert settings.tower("given:1") == "given:1"


def test_a_changed_file_counts_for_the_next_member(here: Path) -> None:
    (here / "chappe.toml").write_text('tower = "one:1"\n')
    assert settings.tower() == "one:1"
    (here / "chappe.toml").write_text('tower = "another:1"\n')
    assert settings.tower() == "another:1"


def test_the_first_source_that_says_how_to_meet_decides(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "chappe.toml").write_text('tower = "t:1"\nforwarders = "f:1"\n')
    assert settings.forwarders() == "f:1"
    monkeypatch.setenv("CHAPPE_TOWER", "u:1")
    assert settings.forwarders() is None
    monkeypatch.setenv("CHAPPE_FORWARDERS", "g:1")
    assert settings.forwarders() == "g:1"
    monkeypatch.delenv("CHAPPE_TOWER")
    monkeypatch.setenv("CHAPPE_FORWARDERS", "none")
    assert settings.forwarders() is None
    assert settings.tower() == "t:1"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tower = 1\n", "line 1: tower: Expected text, got whole number"),
        ("\ntowr = 'x'\n", "line 2: unknown key 'towr'; did you mean 'tower'?"),
        ("[produse]\n", "line 1: unknown section 'produse'; did you mean 'produce'?"),
        ("tower =\n", "line 1: Invalid value"),
    ],
)
def test_an_error_in_the_file_stops_whoever_would_go_by_it(here: Path, text: str, problem: str) -> None:
    (here / "chappe.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        Producer("t")
    assert str(caught.value) == f"{here / 'chappe.toml'}, {problem}"
    with Tower("127.0.0.1:0", security="plain"):
        pass  # asks for nothing that the file could say


def test_a_file_that_is_asked_for_has_to_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHAPPE_CONFIG", "nowhere.toml")
    with pytest.raises(ConfigError, match=r"there is no configuration file nowhere\.toml"):
        Consumer("t")


def test_a_file_that_anybody_may_have_put_there_is_refused(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "chappe.toml").write_text('tower = "elsewhere:1"\n')
    here.chmod(0o1777)
    assert settings.tower() == "elsewhere:1"  # our own
    owner = (here / "chappe.toml").stat().st_uid
    if owner == 0:
        os.chown(here / "chappe.toml", 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match="belongs to another user, in a directory that everybody may write to"):
        settings.tower()
    monkeypatch.setenv("CHAPPE_CONFIG", "chappe.toml")
    assert settings.tower() == "elsewhere:1"
    monkeypatch.delenv("CHAPPE_CONFIG")
    here.chmod(0o755)
    assert settings.tower() == "elsewhere:1"


def test_command_line_and_library_know_the_same_sections() -> None:
    of_library = {each.name for each in msgspec.structs.fields(Everything)}
    assert of_library == {each.name for each in msgspec.structs.fields(SCHEMA)}


def test_everything_of_the_library_finds_the_tower_that_the_environment_names(
    tower: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAPPE_TOWER", tower)
    with Producer("numbers") as producer:
        producer.send_many([b"1", b"2"])
        producer.flush(PATIENCE_S)
    with Consumer("numbers") as consumer:
        assert [record.value for record in consumer.to_end()] == [b"1", b"2"]
    assert read_topic("numbers")["value"].to_pylist() == [b"1", b"2"]
    assert [each.topic for each in list_topics()] == ["numbers"]
    assert place_of({}) == ((), tower)


def test_a_tower_and_a_store_go_by_the_file(here: Path, tmp_path: Path) -> None:
    address = free_address(2)
    (here / "chappe.toml").write_text(f'tower = "{address}"\n')
    with Tower() as made, Store(tmp_path / "kept"), Producer("t") as producer:
        assert made.address.startswith(f"{address}:")
        producer.send(b"x")
        producer.flush(PATIENCE_S)


def test_readers_go_by_forwarders_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        monkeypatch.setenv("CHAPPE_FORWARDERS", f"127.0.0.1:{nobody.getsockname()[1]}")
    with pytest.raises(TimedOut, match="no forwarder answers at "):
        list_topics()
    with pytest.raises(UsageError, match="not the address of a forwarder"):
        Producer("t", forwarders="no such thing")
