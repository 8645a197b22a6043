"""``chappe service``: units of systemd for commands that run for good."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer import Argument, Option

from chappe.cli import app as program
from chappe.cli.console import say
from chappe.errors import ChappeError, UsageError

START_S: Final = 600  # a store with much to check starts for long
STOP_S: Final = 180  # a pipeline finishes its batch
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.-]{0,63}")
_WRONG: Final[type[Any]] = typer.BadParameter.__mro__[1]  # what the parser raises, whichever click typer has
_AFTER: Final = {"ignore_unknown_options": True, "allow_interspersed_args": False}  # options of the command are its own

# What a server of chappe needs of the system: sockets, its directory, and the JIT of Java.
HARDENED: Final = """\
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native
SystemCallFilter=@system-service
UMask=0077
"""
OF_SYSTEM: Final = """\
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
CapabilityBoundingSet=
"""

app = typer.Typer(name="service", help="Write systemd units for commands that run as services.", no_args_is_help=True)

Command = Annotated[
    list[str], Argument(metavar="COMMAND...", help="The command and its options, without the word chappe.")
]
System = Annotated[
    bool, Option("--system", help="A unit of the machine, in /etc/systemd/system; by default one of this user.")
]
Name = Annotated[
    str | None,
    Option(metavar="NAME", help="Name of the unit; by default chappe- and the command, such as chappe-store."),
]
User = Annotated[str, Option(metavar="USER", help="With --system: the user that runs it.")]
Writes = Annotated[
    list[Path] | None,
    Option(
        metavar="DIRECTORY",
        help="With --system: a directory where it may write, beside /var/lib/chappe; can be repeated.",
    ),
]


@app.command("print", context_settings=_AFTER)
def show(
    command: Command, system: System = False, name: Name = None, user: User = "chappe", writes: Writes = None
) -> None:
    """Print the unit of a command."""
    print(unit(command, system=system, user=user, writes=writes or ()), end="")


@app.command(context_settings=_AFTER)
def install(
    command: Command, system: System = False, name: Name = None, user: User = "chappe", writes: Writes = None
) -> None:
    """Write the unit of a command where systemd finds it, and say how to start it."""
    named = unit_name(command, name)
    text = unit(command, system=system, user=user, writes=writes or ())
    place = _folder(system) / named
    try:
        if place.exists() and place.read_text() != text:
            raise UsageError(f"{place} is there already and says something else: remove it, or give this one a --name")
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_name(f".{named}.{os.getpid()}")
        new.write_text(text)
        new.replace(place)
    except PermissionError:
        raise ChappeError(f"{place} cannot be written: only root may, so run this with sudo") from None
    except OSError as error:
        raise ChappeError(f"{place} cannot be written: {error.strerror}") from error
    systemctl = f"systemctl {'' if system else '--user '}"
    say(
        f"wrote {place}; start it now and with the machine: {systemctl}daemon-reload && {systemctl}enable --now {named}"
    )
    if system:
        say(f"it runs as the user {user}: useradd --system --home-dir /var/lib/chappe {user}")
    else:
        say("it ends when you log out, unless you say: loginctl enable-linger")


def unit_name(command: list[str], name: str | None) -> str:
    """Return the file's name. Raises UsageError if it is not the name of a unit."""
    words, _ = understood(command)
    found = f"chappe-{'-'.join(words)}" if name is None else name.removesuffix(".service")
    if not _NAME.fullmatch(found):
        raise UsageError(f"{name!a} is not the name of a unit: letters, digits and :_.- are, at most 64")
    return f"{found}.service"


def unit(command: list[str], *, system: bool, user: str, writes: Sequence[Path]) -> str:
    """Return the text of a unit. Raises UsageError if the command line would not understand the command."""
    words, found = understood(command)
    serves = any("--metrics" in each.opts for each in found.params)  # those say when they are ready
    lines = [
        "[Unit]",
        f"Description=chappe {' '.join(words)}",
        "Wants=network-online.target",
        "After=network-online.target",
        "",
        "[Service]",
        *(["Type=notify", "NotifyAccess=main"] if serves else ["Type=exec"]),
        f"ExecStart={' '.join(map(quoted, [*_program(), *command]))}",
        f"EnvironmentFile=-{'/etc/chappe/environment' if system else '%h/.config/chappe/environment'}",
        "Restart=on-failure",
        "RestartSec=2",
        "RestartPreventExitStatus=2",  # called wrongly: trying again does not help
        "KillMode=mixed",
        f"TimeoutStartSec={START_S}",
        f"TimeoutStopSec={STOP_S}",
        "LimitNOFILE=65536",
    ]
    if system:
        lines += [
            f"User={user}",
            "StateDirectory=chappe",
            "WorkingDirectory=%S/chappe",
            "Environment=HOME=%S/chappe",
            *(f"ReadWritePaths={quoted(str(each.absolute()))}" for each in writes),
            *HARDENED.splitlines(),
            *OF_SYSTEM.splitlines(),
        ]
    else:
        lines += [f"WorkingDirectory={quoted(str(Path.cwd()))}", *HARDENED.splitlines()]
    lines += ["", "[Install]", f"WantedBy={'multi-user' if system else 'default'}.target"]
    return "\n".join(lines) + "\n"


def quoted(word: str) -> str:
    """Return a word as a unit has it. Raises UsageError if it has control characters."""
    if not word.isprintable():
        raise UsageError(f"{word!a} has characters that no unit can have")
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if not escaped or re.search(r"[\s'\"\\;#]", escaped) else escaped


def understood(command: list[str]) -> tuple[list[str], Any]:
    """Return the words that name a command, and it, once its options are understood. Raises UsageError."""
    words: list[str] = []
    rest = list(command)
    found: Any = None
    known: dict[str, Any] = {name: place for name, (place, _) in program.COMMANDS.items()}
    while found is None or hasattr(found, "commands"):
        word = rest.pop(0) if rest else ""
        if word not in known:
            said = f"chappe has no command {' '.join([*words, word])!a}" if word else "the command is not whole"
            raise UsageError(f"{said}: one of {', '.join(known)} is wanted")
        found = known[word] if words else program.load(known[word])
        words.append(word)
        known = getattr(found, "commands", {})
    if words[0] in ("service", "demo"):
        raise UsageError(f"chappe {words[0]} is no service: give a command that serves, such as store")
    parser = found.make_parser(typer.Context(found))
    try:
        given, left, _ = parser.parse_args(rest)
    except _WRONG as error:
        raise UsageError(f"chappe {' '.join(words)}: {error.format_message()}") from None
    missing = [each for each in found.params if each.required and not given.get(each.name)]
    if left or missing:
        what = f"unexpected argument {left[0]!a}" if left else f"{missing[0].metavar or missing[0].opts[0]} is missing"
        raise UsageError(f"chappe {' '.join(words)}: {what}")
    return words, found


def _program() -> list[str]:
    """Return the words that start this program, whatever the PATH of systemd."""
    script = Path(sys.executable).parent / "chappe"
    return [str(script)] if script.exists() else [sys.executable, "-m", "chappe"]


def _folder(system: bool) -> Path:
    if system:
        return Path("/etc/systemd/system")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd" / "user"
