"""Tokens: by which a page or program is an identity over HTTP."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from chappe.api import permissions
from chappe.api.tokens import CONTEXT, TOKEN_MAX, TOKEN_S_MAX, make_token, token_holder
from chappe.errors import NotPermitted, UsageError
from chappe.permissions.rules import Permissions
from chappe.security import Keys
from chappe.storage.key_files import signing_key


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    permissions.init(made, "hub", "server")
    permissions.add(made, "page", "consumer")
    return made


@pytest.fixture
def now() -> datetime:
    return datetime.now(UTC)


def test_a_token_is_its_identity_until_its_end(home: Path, now: datetime) -> None:
    token = make_token(Keys(home / "page"), 60.0, now)
    found = token_holder(token, permissions.read(home), now)
    assert found.name == "page"
    assert 60 <= found.end - now.timestamp() < 61
    assert len(token) < TOKEN_MAX / 3
    assert not set(token) - set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_.")
    for late in (timedelta(seconds=61), timedelta(days=1)):
        with pytest.raises(NotPermitted, match="has expired"):
            token_holder(token, permissions.read(home), now + late)


def test_no_character_of_a_token_can_be_another(home: Path, now: datetime) -> None:
    token, known = make_token(Keys(home / "page"), 60.0, now), permissions.read(home)
    for at in range(len(token)):
        for other in "Aa_.=":
            if token[at] != other:
                with pytest.raises(NotPermitted):
                    token_holder(token[:at] + other + token[at + 1 :], known, now)


@pytest.mark.parametrize(
    "token", ["", ".", "a.b", "\ud800", "ä.ö", "x" * 100_000, "cGFnZSAx.AAAA", "=.=", "cGFnZQ.AAAA"]
)
def test_what_is_no_token_is_refused(home: Path, now: datetime, token: str) -> None:
    with pytest.raises(NotPermitted, match="this is no token"):
        token_holder(token, permissions.read(home), now)


def test_a_token_of_another_authority_or_in_another_name_is_refused(home: Path, now: datetime, tmp_path: Path) -> None:
    permissions.init(tmp_path, "page", "server")
    with pytest.raises(NotPermitted, match="is not signed by an identity"):
        token_holder(make_token(Keys(tmp_path / "page"), 60.0, now), permissions.read(home), now)
    body, _, signature = make_token(Keys(home / "page"), 60.0, now).partition(".")
    forged = urlsafe_b64encode(urlsafe_b64decode(body + "==").replace(b"page", b"hub")).decode().rstrip("=")
    with pytest.raises(NotPermitted, match="is not signed by an identity"):
        token_holder(f"{forged}.{signature}", permissions.read(home), now)


def test_what_the_same_key_signed_for_something_else_is_no_token(home: Path, now: datetime) -> None:
    from chappe.sealing.primitives import signer

    body = f"page {int(now.timestamp()) + 60}".encode()
    sign, known = signer(signing_key(Keys(home / "page"))), permissions.read(home)

    def token(signed: bytes) -> str:
        return ".".join(urlsafe_b64encode(each).decode().rstrip("=") for each in (body, sign(signed)))

    assert token_holder(token(CONTEXT + body), known, now).name == "page"
    for other in (body, b"chappe permissions 1\n" + body, CONTEXT + CONTEXT + body):
        with pytest.raises(NotPermitted, match="is not signed"):
            token_holder(token(other), known, now)


def test_who_was_revoked_or_has_expired_has_no_token_that_counts(home: Path, now: datetime, tmp_path: Path) -> None:
    permissions.init(tmp_path, "hub", "server")
    permissions.add(tmp_path, "page", "consumer", days=2)
    token = make_token(Keys(tmp_path / "page"), TOKEN_S_MAX, now)
    with pytest.raises(NotPermitted, match="page expired on"):
        token_holder(token, permissions.read(tmp_path), now + timedelta(days=3))
    permissions.revoke(tmp_path, "page")
    with pytest.raises(NotPermitted, match="page was revoked"):
        token_holder(token, permissions.read(tmp_path), now)
    with pytest.raises(UsageError, match="page was revoked"):
        make_token(Keys(tmp_path / "page"), 60.0, now)


def test_a_token_survives_that_its_identity_is_renewed(now: datetime, tmp_path: Path) -> None:
    permissions.init(tmp_path, "hub", "server")
    token = make_token(Keys(tmp_path / "hub"), 3600.0, now)
    permissions.renew(tmp_path, "hub")
    assert token_holder(token, permissions.read(tmp_path), now).name == "hub"


@pytest.mark.parametrize("seconds", [0.0, -1.0, TOKEN_S_MAX + 1, float("nan"), float("inf")])
def test_a_time_out_of_bounds_is_refused(home: Path, seconds: float) -> None:
    with pytest.raises(UsageError, match="a token counts for up to 397 days"):
        make_token(Keys(home / "page"), seconds)


def test_who_is_not_there_makes_no_token(home: Path) -> None:
    with pytest.raises(UsageError, match="does not exist"):
        make_token(Keys(home / "nobody"), 60.0)


def test_permissions_that_are_not_in_force_make_nobody(home: Path, now: datetime) -> None:
    known: Permissions = permissions.read(home)
    token = make_token(Keys(home / "page"), TOKEN_S_MAX, now)
    with pytest.raises(NotPermitted, match="compare the clocks"):
        token_holder(token, known, now - timedelta(days=1))
