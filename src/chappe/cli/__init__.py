"""The command line: ``chappe``. One file per group of commands, imported when one of them is called.

app.py        the program: names of commands, global options, errors, signals
options.py    options that several commands share; completing.py and names_there.py: names that a shell completes
serving.py    the frame of commands that serve: identity, pictures, the end, and the setting `audit`
following.py  the frame of commands that print what comes
listing.py    the frame of commands that list; watching.py lists again and again
config.py     config; the configuration file, the environment, their precedence; declared.py has the mesh's settings
units.py      "7d", "10GiB", "2026-01-01T12:00", "10m" as numbers; rates.py has how fast they grow, and slows down
console.py    the process: its streams, files and signals; messages and progress bars on standard error
screen.py     a live picture in a terminal, lines elsewhere; tables that fit; charts.py draws curves and bars
files.py      files that are written whole or not at all
members.py    tower, store, up, forward
topics.py     topics; topics_plot.py draws them
produce.py    produce; produce_input.py is what it reads, lazy_producer.py is made for its first record
consume.py    consume; consume_choice.py is which records, consume_workers.py its --exec, record_format.py its --format
formats.py    how produce reads records and consume prints them
mesh.py       common parts of commands of the mesh: addresses, security, notices about peers
peering.py    the peers of an endpoint, as node, gateway and kv serve show them
values.py     how values, entries and messages of the mesh are typed and printed
node.py       node and its file; network.py is its --map
gateway.py    gateway
publish.py    publish, subscribe
tap.py        tap
kv.py         kv; kv_serve.py is its serve, kv_watch.py its watch
maps.py       map; maps_files.py is its dump and load, maps_serve.py its serve and witness
chain.py      chain; chain_demo.py is its demo
ping.py       ping
benchmark.py  mesh generate, benchmark
bench.py      bench log, mesh, state
keys.py       keys init, add, renew, revoke, list
permissions.py  permissions check, show, sign
doctor.py     doctor
archive.py    archive
copying.py    copy
record.py     record
replay.py     replay
pipeline.py   pipeline run, check, list, status, stop; pipeline_run.py is one run, and metrics.py serves its numbers
dashboard.py  dashboard, also beside other commands; observed.py is what it looks at
top.py        top
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
    """Send Ctrl-C or SIGTERM again: it came while an object was freed, where exceptions are lost."""
    if not issubclass(lost.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(lost)
        return
    number = signal.SIGINT if lost.exc_type is KeyboardInterrupt else signal.SIGTERM
    again = threading.Timer(AGAIN_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _leave(_signum: int, _frame: FrameType | None) -> None:
    """Exit at once: Python may swallow an exception in a callback, and nothing is open yet."""
    os._exit(INTERRUPTED)
