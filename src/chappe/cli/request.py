"""``chappe request`` and ``chappe reply``: ask in the mesh, and answer."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Annotated, Final

import typer
from typer import Argument, Option

from chappe.cli import mesh, options, values
from chappe.cli.console import hear_warnings, say, warn, write_out
from chappe.cli.following import Seconds, UntilInterrupted, batches
from chappe.data import terminal
from chappe.data.json import dumps_plain
from chappe.data.markup import many
from chappe.defaults import REQUEST_ANSWERS_MAX, REQUEST_S
from chappe.errors import InvalidData, UsageError
from chappe.security import SECRETS

if TYPE_CHECKING:
    from chappe import Answer, Request

COMMAND_S: Final = 60.0  # a command has this long to answer one request

app = typer.Typer()
reply_app = typer.Typer()


@app.command(cls=values.Command)
@options.with_groups
def request(
    trust: mesh.Trust,
    life: mesh.Life,
    topic: Annotated[str, Argument(metavar="TOPIC", help="The topic that responders subscribe to.")],
    text: Annotated[str, Argument(metavar="VALUE", help=f"The request. {values.HELP}")],
    peers: mesh.Peers = None,
    timeout: Annotated[float, Option(min=0.001, metavar="S", help="How long to wait for answers.")] = REQUEST_S,
    answers: Annotated[
        int | None,
        Option(min=1, max=REQUEST_ANSWERS_MAX, metavar="N", help="Wait for N answers; by default for the first one."),
    ] = None,
    as_text: values.Text = False,
    as_json: options.Json = False,
) -> None:
    """Publish a request to a topic of the mesh, and print its answers."""
    hear_warnings()
    value = values.read_argument(text, as_text=as_text)
    security = trust.security()
    dialled = mesh.addresses(security, peers or [mesh.HERE])
    with life.endpoint(security, forwarding=False) as endpoint:
        mesh.dial(endpoint, dialled)
        mesh.await_subscribers(endpoint, topic)
        if answers is None:
            found = [endpoint.request(topic, value, timeout=timeout)]
        else:
            found = endpoint.request(topic, value, timeout=timeout, answers=answers)
    for each in found:
        if each.error is not None and not as_json:
            warn(f"{each.responder} failed: {each.error}")
        else:
            write_out(_answer_as_json(each) if as_json else values.line_of(each.data, as_text=as_text))
    wanted = answers or 1
    if len(found) < wanted:
        warn(f"{many(len(found), 'answer')} of {wanted} came within {timeout:g} s")
    if len(found) < wanted or any(each.error is not None for each in found):
        raise typer.Exit(1)


def _answer_as_json(answer: Answer) -> bytes:
    last = f'"error":{dumps_plain(str(answer.error))}' if answer.error else f'"value":{values.typed(answer.data)}'
    line = f'{{"responder":"{answer.responder}",{last}}}\n'
    return terminal.json_line(line.encode("utf-8", "surrogateescape"))


@reply_app.command(cls=values.Command)
@options.with_groups
def reply(
    trust: mesh.Trust,
    life: mesh.Life,
    dialling: mesh.DialOptions,
    topic: Annotated[str, Argument(metavar="TOPIC", help="A prefix of topics; '' is all.")],
    text: Annotated[str | None, Argument(metavar="VALUE", help=f"The answer to every request. {values.HELP}")] = None,
    command: Annotated[
        str | None,
        Option(
            metavar="COMMAND",
            help="A program and its arguments, run for each request: it reads a value, and prints the answer.",
        ),
    ] = None,
    peers: mesh.Peers = None,
    queue: Annotated[
        str | None, Option(metavar="NAME", help="Of all responders with this name each request goes to one.")
    ] = None,
    count: Annotated[int | None, Option(min=1, metavar="N", help="End after N requests.")] = None,
    seconds: Seconds = None,
    as_text: values.Text = False,
) -> None:
    """Answer requests to topics of the mesh, with a value or by a program."""
    hear_warnings()
    if (text is None) is (command is None):
        raise UsageError("give either a VALUE or --command, to answer with")
    try:
        words = shlex.split(command or "")
    except ValueError as error:
        raise UsageError(f"--command {command}: {error}") from None
    if command is not None and not words:
        raise UsageError("--command names no program")
    if words and shutil.which(words[0]) is None:
        raise UsageError(f"--command: there is no program {words[0]!r}, or it cannot be executed")
    value = None if text is None else values.read_argument(text, as_text=as_text)
    security = trust.security()
    dialled = mesh.addresses(security, peers or [mesh.HERE])
    with life.endpoint(security, forwarding=False) as endpoint:
        teller = mesh.PeerNotices()
        endpoint.statuses(callback=teller)
        responder = endpoint.responder(topic, queue=queue)
        with UntilInterrupted(count, seconds):
            dialling.keep(endpoint, dialled)
            for found in batches(responder.get_many, count, seconds):
                for each in found:
                    if words:
                        _run(each, words, as_text=as_text)
                    elif not each.reply(value):
                        warn(f"{each.originator} is out of reach: it does not get its answer")
        mesh.check_met(endpoint, teller, dialled)
        if responder.dropped:
            warn(f"{many(responder.dropped, 'request')} dropped: this was too slow")


def _run(request: Request, words: list[str], *, as_text: bool) -> None:
    """Answer with what a program prints, or with the reason for which it did not."""
    environment = {key: text for key, text in os.environ.items() if key not in SECRETS}
    try:
        line = values.line_of(request.data, as_text=as_text)
        done = subprocess.run(
            words, input=line, capture_output=True, timeout=COMMAND_S, check=False,
            env=environment | {"CHAPPE_TOPIC": request.topic},
        )  # fmt: skip
        printed = done.stdout.decode("utf-8", "surrogateescape").rstrip("\n")
        if not done.returncode:
            request.reply(values.read(printed, as_text=as_text))
            return
        why = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
    except (OSError, ValueError, subprocess.TimeoutExpired, InvalidData, UsageError) as problem:
        why = str(problem)
    say(f"{request.topic}: {words[0]} failed: {why}")
    request.fail(f"{words[0]}: {why}")
