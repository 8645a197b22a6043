"""The file of permissions: its form, its signature, its bounds, and what it survives."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime
from hashlib import sha256
from typing import Final
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chappe.errors import ConfigError, UsageError
from chappe.permissions import text as texts
from chappe.permissions.rules import Identity, Permissions

THEN: Final = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
CURVE: Final = bytes(range(32))
POINT: Final = bytes(range(33))
HEAD: Final = "version = 3\nissued = 2026-01-01T00:00:00Z\nexpires = 2036-01-01T00:00:00Z\n"
ANN: Final = f"""
[identities.ann]
role = "producer"
curve = "{texts.z85(CURVE)}"
endpoint = "232fd6cb-865e-4ddc-b930-ea5d72e3f2e3"
hosts = ["10.0.0.5"]
expires = 2030-01-02T03:04:05Z
signs = "{b64encode(POINT).decode()}"
"""
RULE: Final = '[[rules]]\nallow = ["produce"]\nroles = ["producer"]\ntopics = ["orders/*", "bills"]\n'
WHOLE: Final = HEAD + ANN + "\n# who may write\n" + RULE


def sign(text: bytes) -> bytes:
    """In place of an authority."""
    return sha256(b"secret" + text).digest()


def check(signature: bytes, text: bytes) -> bool:
    return signature == sign(text)


def parse(text: str) -> Permissions:
    return texts.parse(text.encode())


def test_what_is_written_is_understood() -> None:
    found = parse(WHOLE)

    assert (found.version, found.issued.year, found.expires.year) == (3, 2026, 2036)
    id = UUID("232fd6cb-865e-4ddc-b930-ea5d72e3f2e3")
    assert found.identities == {"ann": Identity("ann", "producer", CURVE, id, THEN, POINT, None, ("10.0.0.5",), 5)}
    (rule,) = found.rules
    assert (rule.allow, rule.line, rule.topics) == (True, 14, ("orders/*", "bills"))
    assert found.by_curve[CURVE].name == "ann"


def test_what_was_signed_is_in_force() -> None:
    raw = texts.signed(WHOLE.encode(), sign)

    assert texts.verified(raw, check) == parse(WHOLE)
    assert texts.signed(texts.split(raw)[0], sign) == raw  # signing again adds nothing


def test_no_byte_of_a_signed_file_can_be_another() -> None:
    raw = texts.signed(WHOLE.encode(), sign)
    for at in range(len(raw) - 1):
        changed = bytearray(raw)
        changed[at] ^= 1
        with pytest.raises(ConfigError):
            texts.verified(bytes(changed), check)


@pytest.mark.parametrize("raw", [WHOLE.encode(), b"", b"\n", b"# signed: ecdsa-p256-sha256 \n"])
def test_a_file_without_a_signature_is_refused(raw: bytes) -> None:
    with pytest.raises(ConfigError, match="not signed"):
        texts.verified(raw, check)


def test_a_signature_in_the_middle_is_none() -> None:
    raw = texts.signed(WHOLE.encode(), sign)

    with pytest.raises(ConfigError, match="not signed"):
        texts.verified(raw + RULE.encode(), check)


def test_a_signature_of_the_text_alone_is_none() -> None:
    body = WHOLE.encode() + b"\n"
    line = texts.signed(body, lambda _: sign(body)).removeprefix(body)

    with pytest.raises(ConfigError, match="not as the authority"):
        texts.verified(body + line, check)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("version = 3", "missing required field `issued`"),
        (HEAD.replace("3", "0", 1), ">= 1"),
        (HEAD.replace("3", "true", 1), "Expected `int`"),
        (HEAD.replace("T00:00:00Z", "T00:00:00", 1), "timezone"),
        (HEAD + "wrong = 1", "unknown field `wrong`"),
        (HEAD + ANN.replace("role", "rule"), "unknown field `rule`"),
        (HEAD + ANN.replace("signs", "# signs"), "missing required field `signs`"),
        (HEAD + ANN.replace(b64encode(POINT).decode(), "AAAA"), "length >= 33"),
        (HEAD + ANN.replace("producer", "a b"), "line 5: 'a b' is no name for a role"),
        (HEAD + ANN.replace(".ann]", '."../ann"]'), "line 5: '../ann' is no name"),
        (HEAD + ANN.replace('curve = "', 'curve = "~'), "line 5: the curve of ann"),
        (HEAD + ANN + ANN.replace(".ann", ".bob"), "line 13: bob and .* the same curve key|ann and bob"),
        (HEAD + RULE.replace("produce", "eat", 1), "line 4: there is no verb 'eat'"),
        (HEAD + RULE + 'deny = ["consume"]', "line 4: a rule has either allow or deny"),
        (HEAD + RULE.replace('allow = ["produce"]\n', ""), "line 4: a rule has either allow or deny"),
        (HEAD + RULE.replace('roles = ["producer"]\n', ""), "line 4: a rule has roles or names"),
        (HEAD + RULE.replace("bills", "b*ls"), r"line 4: a topic has its \* at the end"),
        (HEAD + RULE.replace("bills", ""), "length >= 1"),
        (HEAD + RULE.replace('["producer"]', "[]"), "length >= 1"),
        (HEAD + RULE * (texts.RULES_MAX + 1), "length <= 1000"),
        (HEAD + "issued = 1", "not TOML"),
        ("a = " + "[" * 9999, "not TOML"),
        (HEAD + "#" * texts.FILE_BYTES_MAX, "larger than"),
        (HEAD.replace("2036-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00"), "out of bounds"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, wanted: str) -> None:
    with pytest.raises(ConfigError, match=wanted):
        parse(text)


@given(st.binary(max_size=300))
def test_bytes_of_any_kind_are_refused_as_wrong(raw: bytes) -> None:
    for each in (raw, texts.signed(raw, sign), HEAD.encode() + raw):
        try:
            texts.verified(each, check)
        except ConfigError:
            pass


@given(st.lists(st.sampled_from([*HEAD.split("\n"), *ANN.split("\n"), *RULE.split("\n"), "[", '"', "x = 1", "'''"])))
def test_lines_in_any_order_are_understood_or_refused(lines: list[str]) -> None:
    try:
        found = parse(HEAD + "\n".join(lines))
    except ConfigError:
        return
    assert found.version == 3


@pytest.mark.parametrize("name", ["ann", "a.b", "1-2_3", "x" * 64])
def test_an_identity_is_written_and_read(name: str) -> None:
    made = Identity(name, "producer", CURVE, None, THEN, POINT, None, ("a", "::1"))

    found = parse(texts.with_identity(HEAD + RULE, made))

    assert found.identities[name] == Identity(name, "producer", CURVE, None, THEN, POINT, None, ("a", "::1"), 9)
    assert found.rules == parse(HEAD + RULE).rules


@pytest.mark.parametrize("name", ["", "a b", "../x", "x" * 65, "authority", "permissions", "é", "-x", ".x", "a\n"])
def test_names_that_are_none_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="is no name"):
        texts.check_name(name)


def test_a_line_is_put_in_and_replaced_and_all_else_stays() -> None:
    text = WHOLE.replace("[identities.ann]", "# of ann\n[identities.ann]  # she")
    later = THEN.replace(year=2031)

    once = texts.with_line(text, "ann", "revoked", THEN)
    twice = texts.with_line(texts.with_line(once, "ann", "revoked", later), "ann", "expires", later)

    assert parse(once).identities["ann"].revoked == THEN
    ann = parse(twice).identities["ann"]
    assert (ann.revoked, ann.expires) == (later, later)
    assert sorted(set(twice.split("\n")) - set(text.split("\n"))) == [
        "expires = 2031-01-02T03:04:05Z",
        "revoked = 2031-01-02T03:04:05Z",
    ]
    with pytest.raises(ConfigError, match="no section"):
        texts.with_line(text, "bob", "revoked", THEN)


def test_a_new_version_changes_two_lines() -> None:
    text = texts.reissued(WHOLE, 9, THEN)

    found = parse(text)
    assert (found.version, found.issued, found.rules) == (9, THEN, parse(WHOLE).rules)
    with pytest.raises(ConfigError, match="needs the lines"):
        texts.reissued("x = 1", 2, THEN)


@given(st.binary(min_size=32, max_size=32))
def test_keys_are_written_as_zeromq_writes_them(key: bytes) -> None:
    from zmq.utils import z85

    assert texts.z85(key) == z85.encode(key).decode()
    assert texts.unz85(texts.z85(key)) == key


@pytest.mark.parametrize("text", ["", "#" * 40, "a" * 39, "é" * 40, "~" * 40])
def test_what_is_no_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no key"):
        texts.unz85(text)
