"""A producer that publishes until it is killed: TOWER DIRECTORY. Prints its partition, its first offset, and then
how far its records are known to be stored."""

from __future__ import annotations

import sys

from chappe.api.log.producer import Producer


def main(tower: str, directory: str) -> None:
    producer = Producer("hello", tower=tower, identity="me", directory=directory)
    print(producer.partition, producer.next_offset, flush=True)
    while True:
        for offset in range(producer.next_offset, producer.next_offset + 37):
            assert producer.send(b"%d" % offset) == offset
        producer.flush()
        print(producer.stored, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
