"""Where Spark runs: the addresses that can be one, looked at before Java is started.

Spark itself says what is wrong with them only after seconds, or after a minute, and in the stack of Java.
"""

from __future__ import annotations

import re
import socket
from typing import Final

from chappe.errors import SparkUnavailable, UsageError

ANSWER_S: Final = 5.0  # a server on the network that has not answered by then is not there

_THREADS: Final = r"(?:[1-9][0-9]{0,4}|\*)"
_MASTERS: Final = re.compile(
    rf"local(\[{_THREADS}(, *[1-9][0-9]{{0,4}})?\])?|local-cluster\[.+\]|(spark|k8s|sc)://.+|yarn"
)
_PLACE: Final = r"[^/?#,]+:[0-9]{1,5}"
_SPARK: Final = re.compile(f"spark://{_PLACE}(,{_PLACE})*")


def check_master(text: str) -> str:
    """The same text if it can be where Spark runs; raises UsageError."""
    if not _MASTERS.fullmatch(text):
        raise UsageError(
            f"{text[:200]!r} is not where Spark runs: local[*] (here), spark://HOST:PORT, yarn, k8s://HOST, "
            "or sc://HOST:PORT for Spark Connect"
        )
    return text


def await_master(master: str) -> None:
    """See that something listens at ``spark://host:port,host:port``; Spark would go on trying for a minute.

    Raises:
        UsageError: It is no such address.
        SparkUnavailable: Nobody answers.
    """
    if not _SPARK.fullmatch(master):
        raise UsageError(f"{master[:200]!r} is not an address of Spark's masters: spark://HOST:PORT[,HOST:PORT]")
    problem = ""
    for each in master.removeprefix("spark://").split(","):
        host, _, port = each.rpartition(":")
        problem = connect(host.strip("[]"), int(port))
        if not problem:
            return
    raise SparkUnavailable(f"no Spark master answers at {master}: {problem}")


def connect(host: str, port: int) -> str:
    """Why nothing can be reached there; empty if something can."""
    try:
        socket.create_connection((host, port), ANSWER_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        return str(error)
    return ""
