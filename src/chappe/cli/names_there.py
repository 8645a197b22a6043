"""The process that brings names which a shell completes up to date, behind the answer (``completing``)."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from chappe.cli import mesh, options
from chappe.cli.network import look
from chappe.cli.topics import looking
from chappe.dashboard.sources.mesh import data_stores
from chappe.errors import ChappeError
from chappe.reading.groups import ConsumerGroups
from chappe.security import IDENTITY
from chappe.system import settings

NAMES_MAX: Final = 1_000  # of each kind
GROUPS_MAX: Final = 20  # whose members are asked for
PLACES_MAX: Final = 32  # files that are kept
PLAIN: Final = re.compile(r"[\w./:@%+=,-]+")  # a shell would do something with other names, which others choose


def _of_log(place: dict[str, Any]) -> dict[str, list[str]]:
    plain = os.environ.get(IDENTITY) == settings.NONE
    with looking(options.Reach(**place, plain=plain), []) as (held, view):
        groups = ConsumerGroups(view)
        names = list(groups.names())
        members = {each.member for name in names[:GROUPS_MAX] for each in groups.status(name, ages=False).members}
    keys = sorted(held.known)
    return {
        "topics": _some(dict.fromkeys(topic for topic, _ in keys)),
        "partitions": _some(dict.fromkeys(partition for _, partition in keys)),
        "groups": _some(names),
        "members": _some(sorted(members)),
    }


def _of_mesh(place: dict[str, Any]) -> dict[str, list[str]]:
    security = mesh.Trust().security()
    with mesh.Life().endpoint(security, forwarding=False) as endpoint:
        network = look(endpoint, mesh.dial(endpoint, mesh.addresses(security, place["peers"])))
    return {"stores": _some(each.name for each in data_stores(network))}


def _some(names: Iterable[str]) -> list[str]:
    return [each for each in names if PLAIN.fullmatch(each)][:NAMES_MAX]


def _write(file: Path, names: dict[str, list[str]]) -> None:
    temporary = file.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(names))
    temporary.replace(file)
    for old in sorted(file.parent.iterdir(), key=lambda each: each.stat().st_mtime)[: -2 * PLACES_MAX]:
        old.unlink(missing_ok=True)


def main(file: str, said: str) -> None:
    """Ask, and keep the answer; without one what is kept stays."""
    place = json.loads(said)
    with suppress(ChappeError, OSError):
        _write(Path(file), _of_mesh(place) if "peers" in place else _of_log(place))


if __name__ == "__main__":
    main(*sys.argv[1:])
