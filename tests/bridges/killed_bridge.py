"""A bridge in a process of its own, which is to be killed: ``feed`` or ``keep``, a database, a folder, a tower.

``feed`` changes keys of a lasting store without a pause while they are written to topic ``users``; ``keep`` keeps topic
``users`` in a lasting store. Both print a line for each few changes.
"""

from __future__ import annotations

import random
import sys
import time

from chappe import DataStoreToTopic, Endpoint, TopicToDataStore

KEYS = 200
CHUNK = 50


def main(what: str, database: str, folder: str, tower: str) -> None:
    """Run until killed."""
    with Endpoint() as endpoint:
        store = endpoint.attach_master("users", "sqlite", path=database)
        if what == "keep":
            keep(TopicToDataStore(store, "users", tower=tower))
        chance = random.Random()
        with DataStoreToTopic(store, "users", tower=tower, directory=folder):
            while True:
                store.put_many((chance.randrange(KEYS), chance.random()) for _ in range(CHUNK))
                store.erase(chance.randrange(KEYS))
                print(len(store), flush=True)


def keep(keeper: TopicToDataStore) -> None:
    """Tell how many records were taken, whenever some were: before their place is written down."""
    told = 0
    while True:
        now = keeper.progress().records
        if now > told:
            told = now
            print(now, flush=True)
        time.sleep(0.001)


if __name__ == "__main__":
    main(*sys.argv[1:])
