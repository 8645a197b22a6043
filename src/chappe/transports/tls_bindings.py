"""Which certificate may use which endpoint id, as far as one endpoint has seen.

A certificate that names ids may use these and no others, and nobody else may use them: who has claimed one of them
without being named gives way. Certificates that name none, as originals have them, may use any other id; the first one
that uses it keeps it, as long as it is remembered.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, TypeVar

from chappe.defaults import BINDINGS_MAX

Value = TypeVar("Value")

NOT_NAMED: Final = "the peer states another endpoint id than its certificate names"
NAMED_ELSEWHERE: Final = "the peer states an endpoint id that another certificate names"
CLAIMED: Final = (
    "the peer states an endpoint id that is used with another certificate: give each its own id, or certificates that"
    " name one (`chappe keys make`)"
)


class Bindings:
    """The ids that certificates were seen with.

    Args:
        own: The ids that our own certificate names, or else the id that we use.
    """

    def __init__(self, own: frozenset[bytes]) -> None:
        self._own = own
        self._named: OrderedDict[bytes, None] = OrderedDict()  # ids; the one used last comes last
        self._claimed: OrderedDict[bytes, bytes] = OrderedDict()  # id: the certificate that used it, by its digest

    def refusal(self, stated: bytes, named: frozenset[bytes], certificate: bytes | None) -> str | None:
        """Why a peer may not use the id that it states; None if it may, which is remembered.

        Args:
            stated: The id.
            named: What its certificate names.
            certificate: The digest of that; None where there are no certificates.
        """
        if certificate is None:
            return None
        if named:
            if stated not in named:
                return NOT_NAMED
            self._claimed.pop(stated, None)
            _remember(self._named, stated, None)
            return None
        if stated in self._named or stated in self._own:
            return NAMED_ELSEWHERE
        if self._claimed.get(stated, certificate) != certificate:
            return CLAIMED
        _remember(self._claimed, stated, certificate)
        return None


def _remember(table: OrderedDict[bytes, Value], key: bytes, value: Value) -> None:
    table[key] = value
    table.move_to_end(key)
    if len(table) > BINDINGS_MAX:
        table.popitem(last=False)
