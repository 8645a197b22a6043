"""A master in a process of its own: prints its port, and lives until its input ends."""

from __future__ import annotations

import json
import sys
from typing import Any

from chappe import Endpoint

if __name__ == "__main__":
    path, port, entries = sys.argv[1:]
    backend: dict[str, Any] = {"backend": "sqlite", "path": path} if path else {}
    with Endpoint() as endpoint, endpoint.attach_master("s", **backend) as store:
        store.put_many(json.loads(entries))
        print(endpoint.listen(port=int(port)), flush=True)
        sys.stdin.read()
