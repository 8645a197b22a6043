"""The command line: ``chappe``. One file per group of commands; heavy modules are imported inside them.

app.py        the program: global options, errors, signals
options.py    options that several commands share
auditing.py   the setting `audit`: what commands that serve refuse, written into a topic
config.py     config; the configuration file, the environment, and which wins
units.py      "7d", "10GiB", "2026-01-01T12:00", "10m" as numbers
console.py    the process: its streams, files and signals; what goes to standard error, bars of progress among it
screen.py     a live picture in a terminal, lines elsewhere; tables that fit
members.py    tower, store, up
topics.py     topics; what all the stores hold
produce.py    produce
consume.py    consume
formats.py    how produce reads records and consume prints them
mesh.py       what the commands of the mesh share: addresses, security, what is said about peers
values.py     how values, entries and messages of the mesh are typed and printed
node.py       node: its file, and what it shows
publish.py    publish, subscribe
tap.py        tap
kv.py         kv; kv_serve.py is its serve and watch
maps.py       map; maps_files.py is its dump and load, maps_serve.py its serve
ping.py       ping
benchmark.py  mesh generate, benchmark
bench.py      bench log, mesh, state
keys.py       keys init, add, renew, revoke, list
permissions.py  permissions check, show, sign
doctor.py     doctor
archive.py    archive
record.py     record, replay
pipeline.py   pipeline run, check, list, status, stop; pipeline_run.py is one run, and what it shows
demo/         demo
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
AGAIN_S = 0.02


def main() -> None:
    """Run the command line with the arguments of this process; never returns.

    Ctrl-C ends it quietly also while modules are imported before the command, and while Python shuts down after it.
    """
    obeyed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background of a script
    sys.unraisablehook = _signal_again
    try:
        if obeyed:
            signal.signal(signal.SIGINT, _leave)
        from chappe.cli.app import run

        if obeyed:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        code = run()
        if obeyed:
            signal.signal(signal.SIGINT, _leave)
    except KeyboardInterrupt:
        code = INTERRUPTED
    sys.exit(code)


def _signal_again(lost: sys.UnraisableHookArgs) -> None:
    """Ctrl-C or SIGTERM came while an object was freed, where exceptions are lost: it comes again a moment later."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT if lost.exc_type is KeyboardInterrupt else signal.SIGTERM
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _leave(_signum: int, _frame: FrameType | None) -> None:
    """End at once: an exception may be swallowed where Python runs callbacks, and nothing is there to be closed."""
    os._exit(INTERRUPTED)
