"""Options that several commands share; each can also come from the environment or the configuration file."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

import typer

from chappe.defaults import TOWER_HOST, TOWER_SUB_PORT

TOWER: Final = f"{TOWER_HOST}:{TOWER_SUB_PORT}"
LISTEN: Final = TOWER_HOST

Tower: TypeAlias = Annotated[
    str, typer.Option(envvar="CHAPPE_TOWER", metavar="ADDRESS", help="Where the tower is: HOST[:PORT[:SECOND-PORT]].")
]
Listen: TypeAlias = Annotated[
    str, typer.Option(envvar="CHAPPE_LISTEN", metavar="HOST", help="Interface that this program's sockets listen on.")
]
Json: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON for a machine.")]
