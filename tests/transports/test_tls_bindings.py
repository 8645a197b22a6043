"""Ids and the certificates that may use them."""

from __future__ import annotations

import pytest

from chappe.transports import tls
from chappe.transports.tls import CLAIMED, NAMED_ELSEWHERE, NOT_NAMED, Bindings

ID, OTHER, OWN = (bytes([number]) * 16 for number in (1, 2, 3))
KEY, ANOTHER = b"key", b"another"
NONE: frozenset[bytes] = frozenset()


@pytest.fixture
def bindings() -> Bindings:
    return Bindings(frozenset({OWN}))


def test_a_certificate_that_names_ids_may_use_these_alone(bindings: Bindings) -> None:
    assert bindings.refusal(ID, frozenset({ID, OTHER}), KEY) is None
    assert bindings.refusal(OTHER, frozenset({ID, OTHER}), KEY) is None
    assert bindings.refusal(b"\x09" * 16, frozenset({ID, OTHER}), KEY) == NOT_NAMED


def test_nobody_else_may_use_what_a_certificate_names(bindings: Bindings) -> None:
    assert bindings.refusal(ID, frozenset({ID}), KEY) is None
    assert bindings.refusal(ID, NONE, ANOTHER) == NAMED_ELSEWHERE
    assert bindings.refusal(OWN, NONE, ANOTHER) == NAMED_ELSEWHERE


def test_a_renewed_certificate_that_names_the_same_is_as_good(bindings: Bindings) -> None:
    assert bindings.refusal(ID, frozenset({ID}), KEY) is None
    assert bindings.refusal(ID, frozenset({ID}), ANOTHER) is None


def test_who_is_named_takes_an_id_from_who_only_claims_it(bindings: Bindings) -> None:
    bindings.peered(ID, ANOTHER)
    assert bindings.refusal(ID, frozenset({ID}), KEY) is None
    assert bindings.refusal(ID, NONE, ANOTHER) == NAMED_ELSEWHERE


def test_an_id_that_none_names_stays_with_the_key_that_peered_with_it_first(bindings: Bindings) -> None:
    assert bindings.refusal(ID, NONE, KEY) is None
    bindings.peered(ID, KEY)
    assert bindings.refusal(ID, NONE, KEY) is None
    assert bindings.refusal(ID, NONE, ANOTHER) == CLAIMED
    assert bindings.refusal(OTHER, NONE, ANOTHER) is None


def test_who_only_states_an_id_keeps_it_from_nobody(bindings: Bindings) -> None:
    assert bindings.refusal(ID, NONE, KEY) is None
    assert bindings.refusal(ID, NONE, ANOTHER) is None


def test_without_certificates_there_is_nothing_to_bind(bindings: Bindings) -> None:
    assert bindings.refusal(ID, frozenset({ID}), KEY) is None
    assert bindings.refusal(ID, NONE, None) is None


def test_what_is_remembered_has_a_bound(bindings: Bindings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "BINDINGS_MAX", 3)
    for number in range(10):
        bindings.peered(bytes([number + 10]) * 16, KEY)
        assert bindings.refusal(bytes([number + 50]) * 16, frozenset({bytes([number + 50]) * 16}), KEY) is None
    assert len(bindings._claimed) == len(bindings._named) == 3
