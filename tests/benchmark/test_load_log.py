"""Records of a load test are told from those that others write to the topic."""

from __future__ import annotations

from chappe.benchmark.load.frame import STAMP_BYTES
from chappe.benchmark.load.log import SIZE_MIN, stamps


def test_records_of_a_call_share_a_stamp_and_those_of_others_do_not_count() -> None:
    one, two = (b"0123abcd" + each.to_bytes(STAMP_BYTES, "little") for each in (7, 2**40))
    short, other = one[: SIZE_MIN - 1], b"anotherrun" + two
    values = [None, b"", one + b"..", one, b"", None, other, one, two, short, two]
    assert list(stamps(values, b"0123abcd")) == [(7, 2), (7, 1), (2**40, 1), (2**40, 1)]
    assert list(stamps([], b"0123abcd")) == []
