"""The command line: ``chappe``. One file per group of commands; heavy modules are imported inside them.

app.py        the program: global options, errors, signals
options.py    options that several commands share
config.py     the configuration file, the environment, and which wins
units.py      "7d", "10GiB", "2026-01-01T12:00", "10m" as numbers
process.py    what the process was started with: closed streams, few files
console.py    what goes to standard error: notes, warnings, errors
presence.py   whether anything listens where a tower should be
holdings.py   what all the stores hold
members.py    tower, store, up
produce.py    produce; formats.py reads its input
consume.py    consume; rendering.py writes its output
topics.py     topics
settings.py   config
keys.py       keys authority, make
mesh.py       what the commands of the mesh share: addresses, security, what is said about peers
node.py       node; node_file.py reads its file, node_view.py is what it shows
values.py     how values are typed and printed, for publish, subscribe and kv
publish.py    publish
subscribe.py  subscribe; events.py is how it prints and publish reads
ping.py       ping
doctor.py     doctor; checks.py has each check
archive.py    archive
record.py     record
replay.py     replay, replay_mesh.py into the mesh; progress.py is the bar of archive, record and replay
screen.py     a live picture in a terminal, lines elsewhere
fitting.py    a table that leaves out columns where a terminal is narrow
pipeline.py   pipeline run, check, list, status, stop; pipeline_run.py is one run, pipeline_view.py what it shows
demo/         demo
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line with the arguments of this process; never returns.

    Ctrl-C ends it quietly also while modules are imported before the command, and while Python shuts down after it.
    """
    obeyed = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # not so in the background of a script
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


def _leave(_signum: int, _frame: FrameType | None) -> None:
    """End at once: an exception may be swallowed where Python runs callbacks, and nothing is there to be closed."""
    os._exit(INTERRUPTED)
