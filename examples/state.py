"""State that two programs share: a master on disk, a clone that follows it, and a watch.

python examples/state.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from chappe import Endpoint


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Endpoint() as here, Endpoint() as there:
        there.peer("127.0.0.1", here.listen())
        path = str(Path(directory) / "hosts.db")
        with here.attach_master("hosts", "sqlite", path=path) as hosts, there.attach_clone("hosts") as copy:
            with copy.watch(prefix="10.") as changes:
                hosts["10.0.0.1"] = "printer"
                print(changes.get(timeout=10))
            copy.put("10.0.0.2", "laptop", expiry_s=3600)  # goes through the master
            assert copy.put_unique("lock", "me", expiry_s=60)  # one of all who try gets it
            copy.increment("hosts seen", 2)
            copy.await_idle(timeout=10)
            print(sorted(copy.items()))


if __name__ == "__main__":
    main()
