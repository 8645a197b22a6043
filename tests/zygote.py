"""Short commands without the time that a process takes to import them: a third of a second each, of a processor.

A process that has imported every command, the zygote, forks for each one. ``tests/short_command.py`` stands in for
``chappe``: it hands over its arguments, directory, environment, standard input and output, passes signals on, and ends
as the command did. What an interpreter reads when it starts (``STARTS``) is the same in both.
"""

from __future__ import annotations

import atexit
import json
import os
import random
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
SHORT_COMMAND: Final = ROOT / "tests" / "short_command.py"
PLACE: Final = "TESTS_ZYGOTE"
STARTS: Final = ("PYTHON", "LC_", "LANG", "TERM", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TZ")

_open: dict[tuple[tuple[str, str], ...], tuple[str, subprocess.Popen[bytes]]] = {}


def at_zygote(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment in which ``SHORT_COMMAND`` finds a zygote that started as a command in ``env`` would."""
    starts = tuple(sorted((name, value) for name, value in env.items() if name.startswith(STARTS)))
    if starts not in _open:
        folder = tempfile.mkdtemp(prefix="chappe-zygote-")
        path = os.path.join(folder, "socket")
        paths = os.pathsep.join(filter(None, sys.path))
        given = {**{name: value for name, value in env.items() if not name.startswith("CHAPPE_")}, "PYTHONPATH": paths}
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.zygote", path],
            cwd=ROOT, env=given, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline(), "the zygote ended"
        if not _open:
            atexit.register(_end)
        _open[starts] = path, process
    return {**env, PLACE: _open[starts][0]}


def on_path(env: Mapping[str, str]) -> dict[str, str]:
    """Return the same environment with ``SHORT_COMMAND`` as ``chappe``, for lines that a shell runs."""
    found = at_zygote(env)
    folder = Path(found[PLACE]).parent
    command = folder / "chappe"
    if not command.exists():
        command.write_text(f"#!{sys.executable} -IS\n{SHORT_COMMAND.read_text()}")
        command.chmod(0o755)
    return {**found, "PATH": f"{folder}{os.pathsep}{env['PATH']}"}


def _end() -> None:
    for path, process in _open.values():
        process.kill()
        process.communicate()
        shutil.rmtree(os.path.dirname(path), ignore_errors=True)


class _Zygote:
    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        self._wakeups, wakes = socket.socketpair()
        wakes.setblocking(False)
        self._wakeups.setblocking(False)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakes.fileno())
        self._selector = selectors.DefaultSelector()
        for each in (0, self._listening, self._wakeups):
            self._selector.register(each, selectors.EVENT_READ)
        self._children: dict[int, socket.socket] = {}

    def serve(self) -> None:
        """Return in a child, which is to be the command; end with the parent."""
        os.write(1, b"ready\n")
        while True:
            for key, _ in self._selector.select():
                if key.fileobj == 0:
                    for pid in self._children:
                        os.kill(pid, signal.SIGKILL)
                    os._exit(0)
                elif key.fileobj is self._listening:
                    if self._accept():
                        return
                elif key.fileobj is self._wakeups:
                    self._wakeups.recv(4096)
                    self._reap()
                elif key.data in self._children:  # who called it is gone
                    os.kill(key.data, signal.SIGKILL)
                    self._selector.unregister(key.fileobj)

    def _accept(self) -> bool:
        called, _ = self._listening.accept()
        head, files, _, _ = socket.recv_fds(called, 4, 3)
        left, parts = int.from_bytes(head, "little"), []
        while left:
            parts.append(called.recv(left))
            left -= len(parts[-1])
        directory, env, arguments = json.loads(b"".join(parts))
        pid = os.fork()
        if not pid:
            self._become(files, directory, env, arguments)
            return True
        for each in files:
            os.close(each)
        called.sendall(pid.to_bytes(8, "little"))
        self._children[pid] = called
        self._selector.register(called, selectors.EVENT_READ, pid)
        return False

    def _become(self, files: list[int], directory: str, env: dict[str, str], arguments: list[str]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for each in (self._listening, self._wakeups, self._wakes, *self._children.values()):
            each.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
            os.close(file)
        for number, name in enumerate(("stdin", "stdout", "stderr")):  # as Python makes them
            former, mode = getattr(sys, name), "w" if number else "r"
            lines = number == 2 or os.isatty(number)
            made = open(number, mode, 1 if lines else -1, former.encoding, former.errors, newline=None, closefd=False)  # noqa: SIM115
            setattr(sys, name, made)
            setattr(sys, f"__{name}__", made)
        os.chdir(directory)
        os.environ.clear()
        os.environ.update(env)
        os.environ.pop(PLACE, None)
        random.seed()
        sys.argv = ["chappe", *arguments]

    def _reap(self) -> None:
        while self._children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            called = self._children.pop(pid)
            try:
                self._selector.unregister(called)
            except KeyError:
                pass
            try:
                called.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "little", signed=True))
            except OSError:
                pass
            called.close()


def main() -> None:
    from tests.commands import whole_program

    from chappe.cli import main as command

    whole_program()
    made: Any = _Zygote(sys.argv[1])
    made.serve()
    del made
    command()


if __name__ == "__main__":
    main()
