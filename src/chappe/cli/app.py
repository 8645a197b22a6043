"""The program: its commands, global options, and what happens to errors and signals."""

from __future__ import annotations

import logging
import os
import re
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer import Option
from typer.core import TyperCommand, TyperGroup

from chappe.cli import help_layout
from chappe.cli.console import (
    allow_files,
    debugging,
    drop_stdout,
    encode_all,
    exit_code,
    obey_sigterm,
    replace_closed,
    warn,
)
from chappe.errors import ChappeError, OffsetOutOfRange, RecordTooLarge, UnknownTopic, UsageError
from chappe.security import NothingChosen
from chappe.system import program as system_program
from chappe.system.settings import CONFIG

WRONG_USE = UsageError
FILES_MIN = 64  # open at once; with fewer, ZeroMQ aborts the process
WORD_SHOWN = 80  # characters on either side of one that cannot be encoded
WORD_ENDS = " \n\"'"
NOT_THERE = (OffsetOutOfRange, RecordTooLarge, UnknownTopic)  # about data, not about how the command was given
COMMANDS: Final = {  # the function or the group below `chappe.cli`, and its line in the help
    "demo": (
        "demo.demo",
        "Show chappe at work, live: this machine's measurements through store and Spark.",
    ),
    "up": ("members.up", "Run a tower and a store in one process: all that a laptop needs."),
    "tower": ("members.tower", "Run a tower: producers, consumers and stores find each other through it."),
    "store": ("members.store", "Run a store: it keeps every record of every topic in a directory."),
    "forward": (
        "members.forward",
        "Run a forwarder: a store that passes on what it takes.",
    ),
    "produce": (
        "produce.produce",
        "Write records to a topic, from arguments, a file or standard input.",
    ),
    "consume": (
        "consume.consume",
        "Print the records of topics, or hand them to workers; once, or following.",
    ),
    "topics": (
        "topics_admin.app",
        "List topics; or show, create, set, trim and delete them.",
    ),
    "groups": ("groups.app", "Show consumer groups with their members and positions, or set positions."),
    "schemas": ("schemas.app", "Show, check and add the schemas of topics, or serve them."),
    "node": (
        "node.node",
        "Run an endpoint of the mesh, and show its peers and rates; or map the mesh.",
    ),
    "gateway": ("gateway.gateway", "Join two domains of the mesh: pass chosen topics between them, and show how much."),
    "publish": ("publish.app", "Publish values or Zeek events to a topic of the mesh."),
    "subscribe": ("publish.subscribe", "Print what is published to topics of the mesh; Zeek's events by name."),
    "request": ("request.app", "Publish a request to a topic of the mesh, and print its answers."),
    "reply": ("request.reply_app", "Answer requests to topics of the mesh, with a value or by a program."),
    "tap": ("tap.tap", "Show what passes a forwarder or an endpoint of the mesh, and its subscribers."),
    "ping": ("ping.ping", "Measure round trips to an endpoint of the mesh, an original included."),
    "record": (
        "record.record",
        "Keep what is published in the mesh: in a topic, or as Parquet files.",
    ),
    "archive": (
        "archive.archive",
        "Keep topics as Parquet files, each record exactly once.",
    ),
    "copy": (
        "copying.copy",
        "Copy topics to another site, each record exactly once.",
    ),
    "replay": ("replay.replay", "Replay an archive or a recorded topic, in order."),
    "doctor": ("doctor.doctor", "Check versions, ports, Java, disk and clock, and say how to mend what is wrong."),
    "service": ("service.app", "Write systemd units for commands that run as services."),
    "config": ("config.config", "Show the settings in effect, and where each comes from."),
    "dashboard": (
        "dashboard.dashboard",
        "Show in a browser who takes part, what flows, who lags and what is wrong.",
    ),
    "top": (
        "top.top",
        "Show members, rates, lag and problems, live in a terminal, else once.",
    ),
    "pipeline": (
        "pipeline.app",
        "Run pipelines: topics in, SQL or Python, topics, tables or Parquet out.",
    ),
    "keys": ("keys.app", "Make an authority and identities: only your own programs may take part."),
    "permissions": ("permissions.app", "Show, ask and sign who may do what with which topics."),
    "kv": ("kv.app", "Read and write a data store of the mesh, as a clone of it; or serve one."),
    "map": ("maps_files.app", "Read and write a map that many programs share through a server; or serve one."),
    "chain": ("chain.app", "Keep exactly the same state on several servers, any one of which can fail."),
    "mesh": ("benchmark.app", "Benchmark a mesh: play what endpoints have recorded, on this machine."),
    "bench": ("bench.app", "Measure this machine: throughput and latency of log, mesh and shared state."),
}


class _Program(TyperGroup):
    """Imports a command's module when the command is called or completed, and ends quietly where that is right.

    Until then a command has its name and its line in the help. Ctrl-C, SIGTERM and a reader that is gone end quietly.
    """

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: TyperCommand(name, help=line) for name, (_, line) in COMMANDS.items()}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        help_layout.write(self, ctx, formatter)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, found, rest = super().resolve_command(ctx, args)
        if name is not None:
            found = self.commands[name] = load(COMMANDS[name][0])
        return name, found, rest

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments. Help and version are printed here, where typer fails on a closed standard output."""
        try:
            return super().make_context(*args, **extra)
        except (BrokenPipeError, SystemExit) as error:
            raise _ended(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command. typer would print `Aborted!` and fail, and suggest options less than half as long."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            raise _ended(error) from None
        except KeyboardInterrupt as stop:
            raise typer.Exit(exit_code(stop)) from None
        except Exception as error:
            meant: Any = error  # typer exports no class of an option that does not exist
            if getattr(meant, "possibilities", None):
                letters = len(meant.option_name) - len("--")
                meant.possibilities = [each for each in meant.possibilities if 2 * (len(each) - len("--")) > letters]
            raise


def load(place: str) -> Any:
    """Import a command, or a group of commands, of ``COMMANDS``."""
    from chappe.cli import log_options

    module, _, name = place.rpartition(".")
    found = getattr(import_module(f"chappe.cli.{module}"), name)
    alone = typer.Typer()
    if isinstance(found, typer.Typer):
        alone.add_typer(found)
    else:
        alone.command()(found)
    commands = typer.main.get_group(alone).commands
    log_options.add_to(commands)
    found = next(iter(commands.values()))
    help_layout.lay_out(found)
    return found


def _ended(error: BaseException) -> BaseException:
    """Map a broken pipe, which Rich turns into SystemExit, to a quiet exit; return other errors unchanged."""
    if isinstance(error, BrokenPipeError) or isinstance(error.__context__, BrokenPipeError):
        drop_stdout()
        return typer.Exit(0)
    return error


app = typer.Typer(
    cls=_Program,
    name="chappe",
    help="Decentralized event streaming: durable topics without a broker, processed by Spark.",
    epilog="Start with `chappe demo`, or `chappe up` in one terminal and `chappe produce` in another. "
    "Many options can also come from the environment or a file: `chappe config` shows them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": help_layout.WIDTH_MAX},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from chappe.cli.version import lines

        print("\n".join(lines()))
        raise typer.Exit


@app.callback()
def program(
    context: typer.Context,
    config_file: Annotated[
        str | None, Option("--config", envvar="CHAPPE_CONFIG", metavar="FILE", help="Configuration file to use.")
    ] = None,
    version: Annotated[
        bool,
        Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version, and what is there, and exit."
        ),
    ] = False,
) -> None:
    """Read the configuration file; its values become the defaults of the commands' options."""
    del version
    if context.resilient_parsing:
        return
    from chappe.cli import config

    obey_sigterm()
    if allow_files(FILES_MIN) < FILES_MIN:
        raise ChappeError(f"this process may open too few files: at least {FILES_MIN} are needed (ulimit -n 1024)")
    called = context.invoked_subcommand
    assert called is not None
    assert isinstance(context.command, TyperGroup)
    system_program.is_command(f"chappe {called}")
    context.obj = config.load(config_file)
    context.default_map = config.defaults_of_commands(context.obj, {called: context.command.commands[called]})
    if config_file is not None:
        os.environ[CONFIG] = os.path.abspath(os.path.expanduser(config_file))  # members and child processes read it
    if called != "config":
        for key in ("identity", "audit"):
            if key in context.obj.values:
                os.environ.setdefault(f"CHAPPE_{key.upper()}", context.obj.values[key])


def run() -> int:
    """Run the program and return its exit code: 2 for wrong use, 1 for any other failure; one line says why."""
    replace_closed()
    encode_all()
    try:
        app(sys.argv[1:] or ["--help"], prog_name="chappe")
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        return code if _flushed() else 0
    except Exception as error:
        if debugging():
            raise
        warn(_in_one_line(error), logging.ERROR)
        return 2 if isinstance(error, (WRONG_USE, UnicodeEncodeError)) and not isinstance(error, NOT_THERE) else 1
    return 0


def _flushed() -> bool:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        drop_stdout()
        return False
    except (OSError, ValueError):
        pass  # closed; the write that failed has reported it
    return True


def _around(error: UnicodeEncodeError) -> str:
    text, at = error.object, error.start
    begin = max(0, at - WORD_SHOWN, *(text.rfind(each, 0, at) + 1 for each in WORD_ENDS))
    return re.split(f"[{WORD_ENDS}]", text[begin : at + WORD_SHOWN], maxsplit=1)[0]


def _in_one_line(error: Exception) -> str:
    if isinstance(error, NothingChosen):
        return (
            f"{error.host} is not this machine: give --as DIRECTORY/NAME (`chappe keys` makes identities), or --plain "
            "if everybody who reaches it may read and forge"
        )
    if isinstance(error, ChappeError):
        return str(error)
    if type(error).__name__ == "ZMQError":  # not imported for this alone
        return f"the network refuses: {str(error)[:1].lower()}{str(error)[1:]}"
    if isinstance(error, UnicodeEncodeError):
        return f"{_around(error)!a} is not text in UTF-8: give it from a terminal that writes UTF-8 (LC_ALL=C.UTF-8)"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    if isinstance(error, MemoryError):
        return "out of memory"
    if type(error).__module__.startswith(("pyspark.", "py4j.")):
        from chappe.spark.sentences import sentence

        return f"Spark: {sentence(error)}"
    text = " ".join(str(error).split())[:500]
    return f"unexpected {type(error).__name__}: {text} (CHAPPE_DEBUG=1 shows where)"
