"""The golden vectors: bytes that the original C programs sent, and what their decoder made of bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "dafka"


def load(name: str) -> Any:
    """The content of one file."""
    return json.loads((VECTORS / name).read_text())


def frames_of(vector: dict[str, Any]) -> list[bytes]:
    """The frames of one vector."""
    return [bytes.fromhex(frame) for frame in vector["frames"]]
