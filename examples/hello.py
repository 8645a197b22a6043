"""A tower, a store, a producer and a consumer in one process.

python examples/hello.py
"""

from __future__ import annotations

import tempfile

from chappe import Consumer, Producer, Store, Tower


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as directory,
        Tower("127.0.0.1:0") as tower,
        Store(directory, tower=tower.address),
    ):
        with Producer("greetings", tower=tower.address) as producer:
            producer.send("hello", key="first")
            producer.send_many(["how", "are", "you"])
            producer.flush(timeout=10)
        with Consumer("greetings", tower=tower.address) as consumer:
            for record in consumer.to_end():
                print(record.offset, record.key, record.value)


if __name__ == "__main__":
    main()
