"""A durable master in a process of its own: prints its port, and lives until its input ends."""

from __future__ import annotations

import sys

from chappe import Endpoint

if __name__ == "__main__":
    path, port = sys.argv[1:]
    with Endpoint() as endpoint, endpoint.attach_master("s", "sqlite", path=path):
        print(endpoint.listen(port=int(port)), flush=True)
        sys.stdin.read()
