"""A store of a chain in a process of its own: its directory, the chain's servers as JSON, its name, and the tower."""

from __future__ import annotations

import json
import sys

from chappe import ChainConfiguration, OrderedStore


def main(directory: str, servers: str, name: str, tower: str) -> None:
    configuration = ChainConfiguration(json.loads(servers), name="orders")
    with OrderedStore(directory, chain=configuration, name=name, tower=tower) as store:
        print(store.endpoint, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
