"""``chappe permissions``: the rules of the file, their decisions, and its signature after a change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import options
from chappe.cli.console import show_json, tell, warn
from chappe.cli.keys import DIRECTORY, Directory, also
from chappe.cli.listing import print_listing
from chappe.cli.watching import watchable
from chappe.data.markup import many
from chappe.errors import UsageError
from chappe.security import permissions_file

app = typer.Typer(
    name="permissions",
    help="Show, ask and sign who may do what with which topics.",
    no_args_is_help=True,
)

REFUSED: Final = 1  # exit code of a no


@app.command()
def check(
    identity: Annotated[str, Argument(metavar="IDENTITY", help="Its name.")],
    verb: Annotated[str, Argument(metavar="VERB", help="Such as produce, consume, publish, subscribe.")],
    topic: Annotated[str, Argument(metavar="TOPIC", help="A topic, or `prefix*` for all that begin so.")] = "*",
    directory: Directory = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Say whether an identity may do something, and which line decides; exit code 1 is no."""
    from chappe.api import permissions
    from chappe.permissions.rules import EVERYTHING, VERBS

    if verb not in VERBS:
        raise UsageError(f"there is no verb {verb!a}; there are {', '.join(VERBS)}")
    path = permissions_file(directory)
    found = permissions.read(directory)
    subtree = topic.endswith("*")
    decision = found.decide(identity, verb, topic.removesuffix("*"), datetime.now(UTC), subtree=subtree)
    facts = {"identity": identity, "verb": verb, "topic": topic, "allowed": decision.allowed, "why": decision.why}
    where = f" ({path}, line {decision.line})" if decision.line else f" ({path})"
    line = decision.line or None
    notes = [
        f"line {rule.line} does not deny this as it may seem: {why}"
        for rule, why in found.idle_denials()
        if not rule.verbs.isdisjoint({verb, EVERYTHING}) and rule.touches(topic.removesuffix("*"))
    ]
    text = f"{'yes' if decision.allowed else 'no'}: {decision.why}{where}"
    if as_json:
        show_json({**facts, "line": line, "file": str(path), "version": found.version, "notes": notes})
    else:
        print("\n".join([text, *notes]))
    if not decision.allowed:
        raise typer.Exit(REFUSED)


@app.command()
@watchable
def show(directory: Directory = DIRECTORY, as_json: options.Json = False) -> None:
    """Show the rules in force, in their order."""
    from chappe.api import permissions

    found = permissions.read(directory)
    if not as_json:
        identities = many(len(found.identities), "identity", "identities")
        print(f"version {found.version}, until {found.expires:%Y-%m-%d}, {identities}")
        if refusal := found.refusal(datetime.now(UTC)):
            print(f"not in force: {refusal}")
    rules: list[dict[str, Any]] = [
        {
            "allow": each.allow,
            "verbs": sorted(each.verbs),
            "roles": sorted(each.roles),
            "names": sorted(each.names),
            "topics": list(each.topics),
            "line": each.line or None,
        }
        for each in found.rules
    ]
    dates = {"issued": found.issued.isoformat(), "expires": found.expires.isoformat()}
    facts = {"version": found.version, **dates, "identities": len(found.identities), "rules": rules}
    lists = ("verbs", "roles", "names", "topics")
    cells = (
        (str(each["line"] or ""), "allow" if each["allow"] else "deny", *(", ".join(each[name]) for name in lists))
        for each in rules
    )
    print_listing(as_json, facts, ("line", "", *lists), cells)


@app.command()
def sign(
    file: Annotated[
        Path | None, Argument(metavar="FILE", help="What to sign; permissions.toml in the directory of keys.")
    ] = None,
    directory: Annotated[
        Path, Option("--directory", envvar="CHAPPE_KEYS", metavar="DIRECTORY", help="Where the authority's key is.")
    ] = DIRECTORY,
    as_json: options.Json = False,
) -> None:
    """Sign a file of permissions that you have changed, as the next version."""
    from chappe.api import permissions

    path = permissions_file(directory) if file is None else file
    made = permissions.sign(path)
    rules = many(len(made.rules), "rule")
    text = f"signed {path}: version {made.version}, {rules}; every machine needs it{also(path.parent)}"
    warnings = [f"line {rule.line} denies less than it may seem: {why}" for rule, why in made.idle_denials()]
    for each in warnings:
        warn(f"{path}, {each}")
    facts = {"file": str(path), "version": made.version, "rules": len(made.rules), "warnings": warnings}
    tell(as_json, facts, text)
