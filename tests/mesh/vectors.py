"""The golden vectors: bytes that endpoints of the original sent, and sessions between two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "broker"


def load(name: str) -> Any:
    """The content of one file."""
    return json.loads((VECTORS / name).read_text())


def bodies() -> dict[str, bytes]:
    """The bodies of messages.json by name."""
    field = "message_hex_without_length_prefix"
    return {vector["name"]: bytes.fromhex(vector[field]) for vector in load("messages.json") if field in vector}


def session(name: str) -> list[tuple[int, str, bytes]]:
    """The frames of a recorded session: number of the connection, "c2s" or "s2c", the frame with its length."""
    return [
        (frame["conn"], frame["dir"], bytes.fromhex(frame["frame_hex"]))
        for frame in load(name)["frames"]
        if "frame_hex" in frame
    ]
