"""What the permissions say of those who are in a mesh: whom an endpoint's core asks for decisions.

The driver makes these anew whenever another file is in force or somebody in it expires, and hands them to the core. So
their answers never change, and are remembered. A core without rules asks nobody.

A peer is the identity that its certificate names. Authorities give a name to one identity only, ever.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

from chappe.permissions.rules import Permissions

JOIN = "join"  # what is refused to who may nothing at all; not a verb of the file


class MeshRules:
    """What ``permissions`` mean at ``moment``, until somebody expires."""

    def __init__(self, permissions: Permissions, moment: datetime) -> None:
        self.permissions = permissions
        self._moment = moment
        self._whole = permissions.refusal(moment)

    def refusal(self, name: str, named: Collection[bytes] | None = None) -> str:
        """Why an identity may not take part; empty if it may.

        Args:
            named: The endpoint ids that its certificate names, if one was shown.
        """
        if self._whole:
            return self._whole
        identity = self.permissions.identities.get(name)
        if identity is None:
            return f"the permissions know no identity {name}" if name else "its certificate names no identity"
        if named is not None and identity.endpoint is not None and identity.endpoint.bytes not in named:
            ids = ", ".join(sorted(str(UUID(bytes=each)) for each in named)) or "none"
            return f"the endpoint id of {name} is {identity.endpoint}, and its certificate names {ids}"
        return identity.refusal(self._moment)
