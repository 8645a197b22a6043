"""A store in a process of its own, to be killed: DIRECTORY TOWER. Says when it is there."""

from __future__ import annotations

import signal
import sys

from chappe.api.log.store import Store


def main(directory: str, tower: str) -> None:
    with Store(directory, tower=tower) as store:
        print(store.endpoint, flush=True)
        signal.pause()


if __name__ == "__main__":
    main(*sys.argv[1:])
