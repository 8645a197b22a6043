"""The command line: ``chappe``. One file per group of commands; heavy modules are imported inside them.

app.py        the program: global options, errors, signals
options.py    options that several commands share
config.py     the configuration file, the environment, and which wins
units.py      "7d", "10GiB", "2026-01-01T12:00", "10m" as numbers
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

import sys


def main() -> None:
    """Run the command line with the arguments of this process; never returns."""
    try:
        from chappe.cli.app import run

        code = run()
    except KeyboardInterrupt:  # while modules are still being imported
        code = 130
    sys.exit(code)
