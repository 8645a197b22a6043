"""``chappe gateway``: passes chosen topics between two domains of the mesh."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec
from typer import Argument, Context

from chappe.cli import mesh, node, options, peering
from chappe.cli.console import hear_warnings, warn
from chappe.cli.serving import STEP_S, Display, Numbers, serves, show, stopped
from chappe.errors import ConfigError, UsageError
from chappe.system.toml import TomlFile, TomlSection

if TYPE_CHECKING:
    from rich.console import RenderableType

    from chappe import Gateway, GatewayStatus

COLUMNS: Final = ("domain", "endpoints", "gateways", "asked for", "passed/s", "passed", "not passed")
SHOWN: Final = 4  # prefixes in the picture
WRONG: Final = ("SameMesh", "OtherName", "NotPassed")


@serves()
def gateway(
    file: Annotated[str, Argument(metavar="FILE", help="A TOML file that describes the two domains.")],
    queues: mesh.Queues,
    dialling: mesh.DialOptions,
    numbers: Numbers,
    context: Context,
    as_json: options.Json = False,
) -> None:
    """Join two domains of the mesh: pass chosen topics between them, and show how much.

    Several gateways may join the same domains: one passes, the others take over.
    """
    from chappe import Gateway, GatewaySide

    hear_warnings()
    said = load(file)
    securities = {domain: _security(each) for domain, each in said.items()}
    heard = {domain: mesh.addresses(securities[domain], each.listen) for domain, each in said.items()}
    dialled = {domain: mesh.addresses(securities[domain], each.peers) for domain, each in said.items()}
    asked = options.source_of(context, "on_full") in ("COMMANDLINE", "ENVIRONMENT")
    sides = [
        GatewaySide(
            domain,
            each.passes,
            each.id,
            securities[domain],
            gateways=each.gateways,
            **queues.of_endpoint | ({"on_full": each.on_full} if each.on_full and not asked else {}),
        )
        for domain, each in said.items()
    ]
    try:
        made = Gateway(sides[0], sides[1])
    except UsageError as error:
        raise ConfigError(f"{file}: {error}") from error
    with made as joined:
        statuses = [joined.endpoint(domain).statuses() for domain in joined.domains]
        facts = {
            domain: {
                "id": joined.endpoint(domain).id,
                "listen": mesh.listen(joined.endpoint(domain), heard[domain]),
            }
            for domain in joined.domains
        }
        for domain in joined.domains:
            dialling.keep(joined.endpoint(domain), dialled[domain])
        title = f"gateway between {joined.domains[0]} and {joined.domains[1]}"
        listening = [f"{domain} at {', '.join(each['listen'])}" for domain, each in facts.items() if each["listen"]]
        display = _GatewayDisplay(joined, statuses, title, as_json)
        show(display, {"domains": facts}, ", ".join([title, *listening]), numbers.of(None, joined))
    stopped(as_json, "gateway")


class DomainSection(TomlSection, frozen=True):
    listen: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    passes: tuple[str, ...] = ()
    id: str | None = None
    on_full: options.OnFull | None = None
    gateways: tuple[str, ...] | None = None
    security: Literal["plain", "anonymous"] | None = None
    tls: node.TlsSection | None = None


class GatewayFile(TomlSection, frozen=True):
    domains: dict[str, Any] = msgspec.field(default_factory=dict)  # of DomainSection, by name


def load(file: str) -> dict[str, DomainSection]:
    """Read the file of a gateway. Raises ConfigError, whose text names the line."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise ConfigError(f"there is no file {file}")
    source = TomlFile.read(path)
    tables = source.convert(source.tables, GatewayFile).domains
    if len(tables) != 2:
        known = f"{len(tables)} are described: {', '.join(sorted(tables))}" if tables else "none is described"
        raise source.wrong(("domains",), f"a gateway joins two domains, [domains.NAME] each, and {known}")
    found = {}
    for domain, table in tables.items():
        keys = ("domains", domain)
        if not isinstance(table, dict):
            raise source.wrong(keys, f"{domain} is a section of its own: [domains.{domain}]")
        section = source.convert(table, DomainSection, keys)
        if not section.listen and not section.peers:
            raise source.wrong(keys, f"domain {domain} needs listen or peers: nobody would meet the gateway there")
        if section.tls is not None:
            directory = str(path.parent / Path(section.tls.directory).expanduser())
            section = msgspec.structs.replace(section, tls=node.TlsSection(directory=directory, name=section.tls.name))
        found[domain] = section
    if not any(each.passes for each in found.values()):
        raise source.wrong(("domains",), 'nothing is to pass: give a domain passes, such as passes = ["/alarms"]')
    return found


def _security(said: DomainSection) -> Any:
    certificates = None if said.tls is None else (Path(said.tls.directory), said.tls.name)
    return mesh.Trust(certificates, said.security == "anonymous", said.security == "plain").security()


class _GatewayDisplay(Display):
    NEWS = frozenset({"GatewayPasses", "GatewayWaits"})

    def __init__(self, joined: Gateway, statuses: Sequence[Any], title: str, as_json: bool) -> None:
        super().__init__(title, as_json)
        self._gateway = joined
        self._heard = [(each, mesh.PeerNotices(come_and_go=True, quiet=as_json)) for each in statuses]
        self._watches = [peering.PeerRates(joined.endpoint(domain)) for domain in joined.domains]

    def look(self) -> None:
        time.sleep(STEP_S)
        for heard, notices in self._heard:
            for event in heard.poll():
                kind = type(event).__name__
                if kind in WRONG:
                    warn(str(event))
                elif kind in self.NEWS:
                    self.say_news([event])
                else:
                    notices(event)
        self._status = self._gateway.status()
        self._passed = [self.per_s(side.domain, side.passed) for side in self._status.sides]
        self._peers = [watch.look() for watch in self._watches]

    def picture(self) -> RenderableType:
        return table(self.title, self._status, self._passed, self._peers)

    def lines(self) -> Iterator[str]:
        return lines(self._status, self._passed, self._peers)

    def report(self) -> dict[str, Any]:
        return report(self._status, self._peers)


def report(status: GatewayStatus, peers: Sequence[Sequence[peering.PeerRow]]) -> dict[str, Any]:
    sides = [
        {**asdict(side), "wanted": [_text(each) for each in side.wanted], "peers": [asdict(row) for row in rows]}
        for side, rows in zip(status.sides, peers, strict=True)
    ]
    return {"state": status.state, "reason": status.reason, "dropped": status.dropped, "domains": sides}


def _text(prefix: bytes) -> str:
    return prefix.decode("utf-8", "backslashreplace")


def _state(status: GatewayStatus) -> str:
    dropped = f"; {status.dropped:,} dropped, as peers were slow" if status.dropped else ""
    return f"{status.state}{f': {status.reason}' if status.reason else ''}{dropped}"


def _asked(wanted: Sequence[bytes]) -> str:
    shown = ", ".join([_text(each) for each in wanted[:SHOWN]])
    return f"{shown}, ... ({len(wanted)} prefixes)" if len(wanted) > SHOWN else shown or "nothing"


def table(
    title: str, status: GatewayStatus, passed: Sequence[float], peers: Sequence[Sequence[peering.PeerRow]]
) -> RenderableType:
    from chappe.cli.screen import Fitting, titled

    cells = [
        (
            side.domain,
            f"{side.endpoints:,}",
            f"{side.gateways:,}",
            _asked(side.wanted),
            f"{rate:,.0f}",
            f"{side.passed:,}",
            f"{side.refused:,}",
        )
        for side, rate in zip(status.sides, passed, strict=True)
    ]
    made = Fitting(
        COLUMNS, cells, left=("domain", "asked for"), spare=("gateways", "not passed", "passed", "asked for")
    )
    titles = [f"in {side.domain}" for side in status.sides]
    pictures = [peering.table(name, rows) for name, rows in zip(titles, peers, strict=True)]
    return titled(f"{title}: {_state(status)}", made, *pictures)


def lines(status: GatewayStatus, passed: Sequence[float], peers: Sequence[Sequence[peering.PeerRow]]) -> Iterator[str]:
    rates = [f"{rate:,.0f}/s from {side.domain}" for side, rate in zip(status.sides, passed, strict=True)]
    yield f"{_state(status)}; {', '.join(rates)}"
    for side, rows in zip(status.sides, peers, strict=True):
        for row in rows:
            if row.id is None:
                yield f"no peering with {row.address} in {side.domain} yet: {row.status}"
