"""``chappe dashboard``: a page that shows the running system, from a process that only looks, or beside a command."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

import typer
from typer import Option

from chappe.cli import mesh, options
from chappe.cli.console import hear_warnings, say, tell
from chappe.cli.observed import ObservedSystem, sources
from chappe.cli.serving import Numbers, notify, serve_run
from chappe.cli.units import place
from chappe.errors import ChappeError

if TYPE_CHECKING:
    from chappe import Producer
    from chappe.observing.numbers import Family

AT: Final = "127.0.0.1:8788"
TOKEN: Final = "CHAPPE_DASHBOARD_TOKEN"
BESIDE: Final = "CHAPPE_DASHBOARD_BESIDE"  # set: it ends when its standard input does
END_S: Final = 5.0
LAST_LINES: Final = 20  # kept of a dashboard beside a command: they say why it ended


@options.with_groups
def dashboard(
    context: typer.Context,
    trust: mesh.Trust,
    life: mesh.Life,
    dialling: mesh.DialOptions,
    where: ObservedSystem,
    numbers: Numbers,
    at: Annotated[
        str,
        Option(
            "--at",
            metavar="[HOST:]PORT",
            help="Where the page is; beyond this machine it needs an identity, for TLS, and a token, which is printed.",
        ),
    ] = AT,
    allow_changes: Annotated[
        bool,
        Option(
            "--allow-changes",
            help="Let holders of the printed token write, trim and delete; the page first says what would be lost.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show in a browser who takes part, what flows, who lags and what is wrong."""
    if os.environ.get(BESIDE):  # now, as whoever started this may end before pages can be opened
        threading.Thread(target=_end_with_input, name="chappe-beside", daemon=True).start()
    host, port = place(at)
    security = trust.security()
    from chappe.dashboard.server import new_token, secured, serve, url
    from chappe.web.connections import listening

    tls, office = secured(host, security)
    given = os.environ.get(TOKEN) or None
    token = new_token(host, given, changes=allow_changes)
    hear_warnings(where.tower)
    with ExitStack() as ending:
        listener = ending.enter_context(listening(host, port, "choose another: --at PORT"))
        from chappe.dashboard.entries import Entries
        from chappe.dashboard.leases import Leases
        from chappe.dashboard.looks import Looks
        from chappe.dashboard.watching import SourceRunner

        seen = sources(where, context, trust, life, dialling)
        watching = ending.enter_context(SourceRunner(seen.all))
        leases = Leases()
        ending.callback(leases.close)
        endpoint = seen.mesh.endpoint
        entries = Entries(endpoint, {} if seen.shared is None else seen.shared.maps, leases, seen.mesh.lives)
        changes = None
        if allow_changes:
            from chappe.api.log.kept_partition import KeptPartitions
            from chappe.dashboard.changes import DashboardChanges

            def producer(topic: str) -> AbstractContextManager[Producer]:
                at, by = where.tower, where.forwarders or None
                kept = KeptPartitions(topic, tower=at, listen=where.listen, forwarders=by, security=trust.of_log)
                return kept.producer()

            changes = DashboardChanges(seen.log, producer, endpoint, entries, security=trust.of_log)
        looks = Looks(watching, seen.log, endpoint, entries, leases, trust.of_log, changes)
        # Journals and logs of CI may keep this output, and whoever set the token knows it.
        page = url(host, listener.getsockname()[1], None if given else token, tls=tls is not None)
        hint = f", with ?token= and what {TOKEN} says" if given else ""

        facts, text = {"url": page}, f"dashboard at {page}{hint}"
        started = False

        def count() -> Iterable[Family]:
            from chappe.observing.numbers import of_snapshot

            return of_snapshot(watching.snapshot())

        def why() -> str:
            return "" if started else "its pages are not there yet"

        metrics = serve_run(numbers.metrics, security, ending, count, why)
        if metrics is not None:
            facts["metrics"] = metrics
            text += f", metrics at {metrics}"

        def ready() -> None:
            nonlocal started
            started = True
            tell(as_json, facts, f"{text}; Ctrl-C stops")
            notify("READY=1")

        with suppress(KeyboardInterrupt):
            serve(looks, listener, token, ready, tls, office)
    if not as_json:
        say("dashboard stopped")


def _end_with_input() -> None:
    """End once the parent process has ended, whatever ended it."""
    import signal

    with suppress(OSError):
        while os.read(0, 4096):  # not of sys.stdin, whose lock may not be held where Python ends
            pass
    os.kill(os.getpid(), signal.SIGTERM)


# -- beside other commands --------------------------------------------------------------------------

Wanted: TypeAlias = Annotated[
    bool, Option("--dashboard", help=f"Show a dashboard, too, from a process of its own; {AT} if that is free.")
]


@contextmanager
def beside(wanted: bool, *arguments: str) -> Iterator[str | None]:
    """Run a dashboard in a process of its own, which slows nothing down, while the context lasts; yield its address.

    It ends with this process, also after a kill. Raises ChappeError if it cannot begin.
    """
    if not wanted:
        yield None
        return
    anywhere = [] if _is_free() else ["--at", "127.0.0.1:0"]
    settled = ["--forwarders", ""] if "--tower" in arguments else []  # whatever the settings name for others
    command = [sys.executable, "-P", "-m", "chappe", "dashboard", "--json", *anywhere, *arguments, *settled]
    pipe = subprocess.PIPE
    environment = {**os.environ, BESIDE: "1"}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment, start_new_session=True)
    last: list[str] = []
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdin is not None
    listening = threading.Thread(target=_keep_last, args=(process.stderr, last), daemon=True)
    listening.start()
    try:
        line = process.stdout.readline()
        if not line:
            process.wait()
            listening.join(END_S)
            raise ChappeError(last[-1].removeprefix("chappe: ") if last else "the dashboard ended at once")
        yield str(json.loads(line)["url"])
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(END_S)
        process.kill()
        process.wait()
        process.stdout.close()


def _is_free() -> bool:
    try:
        socket.create_server(place(AT)).close()
    except OSError:
        return False
    return True


def _keep_last(stream: Any, last: list[str]) -> None:
    for raw in stream:
        last.append(raw.decode(errors="replace").strip())
        del last[:-LAST_LINES]
