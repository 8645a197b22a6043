"""The program: its commands, global options, and what happens to errors and signals."""

from __future__ import annotations

import os
import re
import sys
from typing import Annotated, Any

import typer
from typer import Option
from typer.core import TyperGroup

from chappe.cli import (
    archive,
    bench,
    benchmark,
    chain,
    config,
    consume,
    dashboard,
    demo,
    doctor,
    gateway,
    keys,
    kv,
    log_options,
    maps,
    maps_files,
    members,
    node,
    permissions,
    ping,
    pipeline,
    produce,
    publish,
    record,
    replay,
    tap,
    topics,
    values,
)
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
FILES_MIN = 64  # open at once; below, ZeroMQ ends the process without a word of ours
WORD_SHOWN = 80  # characters to either side of one that cannot be encoded
WORD_ENDS = " \n\"'"
NOT_THERE = (OffsetOutOfRange, RecordTooLarge, UnknownTopic)  # about data, not about how the command was given


class _Program(TyperGroup):
    """Ends quietly where that is right: on Ctrl-C and SIGTERM, and when nobody reads the output any more."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        log_options.add_to(self.commands)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        """Parse the arguments, which prints help and version; typer fails on a closed standard output there."""
        try:
            return super().make_context(*args, **extra)
        except (BrokenPipeError, SystemExit) as error:
            raise _ended(error) from None

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer would print `Aborted!` and fail."""
        try:
            return super().invoke(ctx)
        except (BrokenPipeError, SystemExit) as error:
            raise _ended(error) from None
        except KeyboardInterrupt as stop:
            raise typer.Exit(exit_code(stop)) from None


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
    epilog="Start with `chappe demo`, or `chappe up` in one terminal and `chappe produce` in another.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
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
    obey_sigterm()
    if allow_files(FILES_MIN) < FILES_MIN:
        raise ChappeError(f"this process may open too few files: at least {FILES_MIN} are needed (ulimit -n 1024)")
    system_program.is_command(f"chappe {context.invoked_subcommand}")
    context.obj = config.load(config_file)
    assert isinstance(context.command, TyperGroup)
    context.default_map = config.defaults_of_commands(context.obj, context.command.commands)
    if config_file is not None:
        os.environ[CONFIG] = os.path.abspath(os.path.expanduser(config_file))  # members and child processes read it
    if context.invoked_subcommand != "config":
        for key in ("identity", "audit"):
            if key in context.obj.values:
                os.environ.setdefault(f"CHAPPE_{key.upper()}", context.obj.values[key])


for function in (
    demo.demo, members.up, members.tower, members.store, members.forward, produce.produce, consume.consume,
    topics.topics, node.node, gateway.gateway,
    publish.publish, publish.subscribe, tap.tap, ping.ping, record.record, archive.archive, replay.replay,
    doctor.doctor, config.config, dashboard.dashboard,
):  # fmt: skip
    app.command(cls=values.Command if function is publish.publish else None)(function)
app.add_typer(pipeline.app)
app.add_typer(keys.app)
app.add_typer(permissions.app)
app.add_typer(kv.app)
for name, function in (("dump", maps_files.dump), ("load", maps_files.load)):
    maps.app.command(name)(function)
app.add_typer(maps.app)
app.add_typer(chain.app)
app.add_typer(benchmark.app)
app.add_typer(bench.app)


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
        warn(_in_one_line(error))
        return 2 if isinstance(error, (WRONG_USE, UnicodeEncodeError)) and not isinstance(error, NOT_THERE) else 1
    return 0


def _flushed() -> bool:
    """Flush standard output; return False if its reader is gone."""
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
