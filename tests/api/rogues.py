"""Members with keys whose rules are not those of everybody else: they know a version that allows them all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from chappe.api import permissions
from chappe.security import Keys
from chappe.storage.key_files import watched_permissions

HEAD = """\
version = 1
issued = 2020-01-01T00:00:00Z
expires = 2120-01-01T00:00:00Z
"""


def rules(home: Path, *wanted: tuple[Sequence[str], str, Sequence[str]]) -> None:
    """Have these rules, verbs, name and topics, and no others, in force."""
    path = home / "permissions.toml"
    text = path.read_text()
    identities = text[text.index("[identities.") :]
    made = "".join(
        f"\n[[rules]]\nallow = {list(verbs)!r}\nnames = [{name!r}]\ntopics = {list(topics)!r}\n"
        for verbs, name, topics in wanted
    )
    version = next(each for each in text.splitlines() if each.startswith("version"))
    path.write_text(HEAD.replace("version = 1", version) + made + "\n" + identities.split("# signed:")[0])
    permissions.sign(path)


def rogue(home: Path, name: str) -> Keys:
    """The keys of somebody who goes by a version that allows everything to everybody, and takes no other."""
    there = home.parent / f"{home.name}-of-{name}"
    there.mkdir()
    for each in ("authority.pem", "authority.key", "permissions.toml", f"{name}.pem", f"{name}.key"):
        (there / each).write_bytes((home / each).read_bytes())
        (there / each).chmod((home / each).stat().st_mode)
    path = there / "permissions.toml"
    path.write_text(re.sub(r"(?m)^version = \d+", "version = 1", path.read_text()))  # an old one, which nobody takes
    rules(there, (["introduce", "store"], "hub", ["*"]), (["everything"], "*", ["*"]))
    (there / "authority.key").unlink()
    watched_permissions(there).offer = lambda raw: False  # type: ignore[method-assign]
    return Keys(there / name)
