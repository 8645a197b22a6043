"""Tokens: by which a page or program is an identity over HTTP."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("jwt")

import jwt

from chappe.api import permissions
from chappe.api.tokens import AUDIENCE, TOKEN_MAX, TOKEN_S_MAX, make_token, token_holder
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


def test_a_token_is_a_json_web_token(home: Path, now: datetime) -> None:
    end = int(now.timestamp()) + 60
    claims = jwt.decode(make_token(Keys(home / "page"), 60.0, now), options={"verify_signature": False})
    assert claims == {"sub": "page", "exp": claims["exp"], "aud": "chappe"}
    assert end <= claims["exp"] <= end + 1
    others = jwt.encode({"sub": "page", "exp": end, "aud": AUDIENCE}, signing_key(Keys(home / "page")), "ES256")
    assert token_holder(others, permissions.read(home), now).name == "page"


def test_no_character_of_a_token_can_be_another(home: Path, now: datetime) -> None:
    token, known = make_token(Keys(home / "page"), 60.0, now), permissions.read(home)
    for at in range(len(token) - 1):  # the last one has bits that say nothing
        for other in "Aa_.=":
            if token[at] != other:
                with pytest.raises(NotPermitted):
                    token_holder(token[:at] + other + token[at + 1 :], known, now)


@pytest.mark.parametrize(
    "token",
    ["", ".", "a.b", "a.b.c", "\ud800", "ä.ö", "x" * 100_000, "cGFnZSAx.AAAA", "=.=", "e30.e30.", "e30.W10.AA", "..",
     "e30." + "W1" * 400 + ".AA"],
)  # fmt: skip
def test_an_invalid_token_is_refused(home: Path, now: datetime, token: str) -> None:
    with pytest.raises(NotPermitted, match=r"invalid token|not signed by an identity"):
        token_holder(token, permissions.read(home), now)


def test_a_token_without_a_signature_or_with_a_shared_secret_is_refused(home: Path, now: datetime) -> None:
    from chappe.sealing.primitives import point_of

    known, claims = permissions.read(home), {"sub": "page", "exp": int(now.timestamp()) + 60, "aud": AUDIENCE}
    point = point_of(signing_key(Keys(home / "page")).public_key())
    for token in (jwt.encode(claims, "", "none"), jwt.encode(claims, point, "HS256")):
        with pytest.raises(NotPermitted, match="invalid token"):
            token_holder(token, known, now)


def test_a_token_of_another_authority_or_in_another_name_is_refused(home: Path, now: datetime, tmp_path: Path) -> None:
    permissions.init(tmp_path, "page", "server")
    with pytest.raises(NotPermitted, match="is not signed by an identity"):
        token_holder(make_token(Keys(tmp_path / "page"), 60.0, now), permissions.read(home), now)
    head, _, signature = make_token(Keys(home / "page"), 60.0, now).split(".")
    _, claims, _ = make_token(Keys(home / "hub"), 60.0, now).split(".")
    with pytest.raises(NotPermitted, match="is not signed by an identity"):
        token_holder(f"{head}.{claims}.{signature}", permissions.read(home), now)


@pytest.mark.parametrize("changed", [{"aud": "other"}, {"aud": None}, {"exp": None}, {"exp": "soon"}, {"sub": 5}])
def test_claims_that_are_missing_or_of_another_kind_are_refused(
    home: Path, now: datetime, changed: dict[str, object]
) -> None:
    claims = {"sub": "page", "exp": int(now.timestamp()) + 60, "aud": AUDIENCE} | changed
    said = {name: value for name, value in claims.items() if value is not None}
    raw = jwt.api_jws.encode(json.dumps(said).encode(), signing_key(Keys(home / "page")), "ES256")
    with pytest.raises(NotPermitted, match=r"invalid token|not signed by an identity"):
        token_holder(raw, permissions.read(home), now)


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
