"""What happens to a command at the edges of its process: interrupts while it starts, closed streams, few files."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.cli.conftest import PATIENCE_S, Shell

from chappe.cli import console

INTERRUPTED_AT = """
import os, signal, sys
module = sys.argv[1]
class Interrupt:
    def find_spec(self, name, *_):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
from chappe.cli import main
sys.argv[1:] = ["consume", "x", "--tower", "127.0.0.1:1"]
main()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("module", ["chappe.cli.app", "typer.core", "chappe.api.log.consumer", "zmq"])
def test_an_interrupt_while_modules_are_imported_ends_quietly(shell: Shell, module: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED_AT, module]
    done = subprocess.run(command, env=shell.env, cwd=shell.directory, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


FREED = """\
import signal, sys, time, types
from chappe.cli import main
from chappe.cli.console import obey_sigterm

class Freed:
    def __del__(self):
        signal.raise_signal(signal.{signal})
        len([])  # its handler runs here

def run():
    obey_sigterm()
    Freed()
    print("not heard yet", flush=True)
    time.sleep({seconds})

sys.modules["chappe.cli.app"] = types.SimpleNamespace(run=run)
main()
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_that_is_lost_while_an_object_is_freed_comes_again(shell: Shell, name: str) -> None:
    """pyzmq looks for signals wherever it frees a frame."""
    code = FREED.format(signal=name, seconds=PATIENCE_S)
    done = subprocess.run([sys.executable, "-c", code], env=shell.env, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, b"not heard yet\n", b"")


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="a shell of POSIX")
@pytest.mark.parametrize(
    ("command", "code", "text"),
    [
        ("consume x >&-", 1, b"chappe: standard output is closed\n"),
        ("config --json >&-", 1, b"chappe: standard output is closed\n"),
        ("produce x <&-", 1, b"chappe: standard input is closed\n"),
        ("produce x --key 2>&-", 2, b""),
    ],
)
def test_closed_streams_are_told(shell: Shell, command: str, code: int, text: bytes) -> None:
    line = ["sh", "-c", f'exec "$0" -m chappe {command}', sys.executable]
    done = subprocess.run(line, env=shell.env, cwd=shell.directory, capture_output=True, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout, done.stderr) == (code, b"", text)


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="a limit of POSIX")
def test_too_few_files_are_one_sentence(shell: Shell) -> None:
    line = ["sh", "-c", 'ulimit -n 20; exec "$0" -m chappe topics', sys.executable]
    done = subprocess.run(line, env=shell.env, cwd=shell.directory, capture_output=True, timeout=PATIENCE_S)
    assert done.returncode == 1
    assert done.stderr == b"chappe: this process may open too few files: at least 64 are needed (ulimit -n 1024)\n"


def test_files_are_as_many_as_the_machine_allows() -> None:
    assert console.allow_files(8) >= 8
