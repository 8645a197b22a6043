"""Imports go only downwards, and what is pure touches no clock, socket, thread, file or random source.

Read from the source with ``ast``, imports inside functions included, so nothing has to run to be found.
"""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from tools.compile import PARTS, parts

SOURCE: Final = Path(__file__).parent.parent / "src"

# Each part of the tree, by its longest matching name, and the parts that it may import besides itself.
BASE: Final = {
    "chappe.compiled",
    "chappe.errors",
    "chappe.defaults",
    "chappe.limits",
    "chappe.security",
    "chappe.data",
    "chappe.permissions",
}
CONTRACT: Final = {*BASE, "chappe.core", "chappe.deadlines"}
PURE: Final = {
    "chappe.channel": CONTRACT,
    "chappe.log": CONTRACT,
    "chappe.mesh": CONTRACT,
    "chappe.gateway": {*CONTRACT, "chappe.mesh"},
    "chappe.tapping": {*CONTRACT, "chappe.log", "chappe.mesh"},  # reads the frames of both
    "chappe.kv": {*CONTRACT, "chappe.channel", "chappe.replication"},
    "chappe.replication": CONTRACT,
    "chappe.sealing": CONTRACT,
    "chappe.observing": BASE,
}
# Compose cores, and do no I/O either.
MEMBER: Final = {
    "chappe.member": {*CONTRACT, "chappe.mesh", "chappe.kv"},
    "chappe.sealing.in_log": {*CONTRACT, "chappe.sealing", "chappe.log"},
    "chappe.sealing.in_mesh": {*CONTRACT, "chappe.sealing", "chappe.mesh", "chappe.kv"},
}
FEATURES: Final = {*CONTRACT, *PURE, *MEMBER, "chappe.arrow", "chappe.columns"}
WORLD: Final = {"chappe.system", "chappe.storage", "chappe.transports", "chappe.runtime"}
FACES: Final = {*BASE, "chappe", "chappe.api"}
# What reads stores from outside a node: the client of their query sockets, and the form of what they answer.
READING: Final = {
    "chappe.transports.queries",
    "chappe.log.batch",
    "chappe.log.catalogue",  # how entries of topics merge
    "chappe.log.compression",
    "chappe.log.queries",
    "chappe.log.storage",
    "chappe.log.events",
    "chappe.arrow",
}
HERE: Final = {"chappe.system"}  # of the operating system, for whoever needs it
MACHINES: Final = {"chappe.replication.chain.replica"}  # what a chain replicates, for those who check theirs
SHOWN: Final = {"chappe.mesh.network", "chappe.sealing.epochs"}  # values that a user gets, for people to look at
FORMS: Final = {"chappe.bridges.form", "chappe.bridges.kv_form"}
ALLOWED: Final[dict[str, set[str]]] = {
    "chappe": {
        *BASE,
        *("chappe.api", "chappe.log", "chappe.reading", "chappe.bridges", "chappe.subscribers"),
        "chappe.mesh.events",  # the gaps that a subscriber is told of
        "chappe.schemas",
        "chappe.system.sources",  # which modules are imported at all
    },
    "chappe.__main__": {"chappe.cli"},
    **{part: {*BASE} for part in BASE},
    "chappe.core": BASE,
    "chappe.deadlines": BASE,
    **PURE,
    **MEMBER,
    "chappe.arrow": {*BASE, "chappe.log.batch", "chappe.log.record", "chappe.arrow_rows"},
    "chappe.arrow_rows": {*BASE, "chappe.log.batch"},
    "chappe.columns": {*BASE, "chappe.arrow", "chappe.sealing.events"},
    "chappe.system": BASE,
    "chappe.storage": {*FEATURES, "chappe.system"},
    "chappe.schemas": {*BASE, "chappe.storage.schema_database"},
    "chappe.transports": {*FEATURES, "chappe.system", "chappe.storage"},
    "chappe.runtime": {*FEATURES, "chappe.system", "chappe.storage", "chappe.transports"},
    "chappe.sim": FEATURES,
    "chappe.api": {*FEATURES, *WORLD, "chappe.schemas"},
    # what a user's test lives in: it stands in for the machine below the runtime, on the simulator's network
    "chappe.testing": {
        *(*FACES, *HERE, "chappe.sim", "chappe.runtime", "chappe.log.batch", *MACHINES),
        "chappe.storage.segments.files",  # the calls that a disk is asked by
        "chappe.core",  # the kinds of effects that a network counts by
    },
    "chappe.compat": {*FEATURES, *WORLD, "chappe.api"},
    "chappe.subscribers": {*FACES, *HERE, "chappe.log.batch"},
    "chappe.subscribers.shares": {*BASE, "chappe.log.batch"},
    "chappe.reading": {*FACES, *READING, *HERE},
    "chappe.bridges": {*FACES, *HERE, *READING, "chappe.reading", "chappe.mesh.messages", "chappe.kv.engine"},
    # log.transactions: where a sink's records lie; log.ordered.commands: what it asks of a chain; bridges.form,
    # kv_form: what records of the mesh and stores are; observing.snapshot: what a pipeline tells of its queries
    "chappe.spark": {
        *(*FACES, *READING, *HERE, *FORMS),
        *("chappe.reading", "chappe.arrow_rows", "chappe.schemas"),
        *("chappe.log.exactly_once.transactions", "chappe.log.ordered.commands", "chappe.observing.snapshot"),
    },
    # what its processes are made of, the recordings that they play, and a store's word that its disk refuses
    "chappe.benchmark": {*FACES, *HERE, "chappe.storage.recordings", "chappe.mesh.messages", "chappe.log.events"},
    "chappe.cli": {
        *(*FACES, *READING, *HERE, *SHOWN),
        *("chappe.reading", "chappe.bridges", "chappe.spark", "chappe.web", "chappe.benchmark", "chappe.subscribers"),
        *("chappe.dashboard", "chappe.observing", "chappe.schemas"),
    },
    # of pipelines what they write about themselves, of the web who may be let in, and of groups how far they are
    "chappe.dashboard": {
        *(*FACES, *READING, *HERE, *SHOWN),
        *("chappe.observing", "chappe.reading", "chappe.bridges.form", "chappe.web.connections"),
        *("chappe.gateway.announcement", "chappe.storage.segments.files"),
        *("chappe.storage.positions", "chappe.mesh.link_reports", "chappe.log.traffic", "chappe.spark.pipeline.states"),
    },
    "chappe.web": {*FACES, *HERE, "chappe.schemas"},
    "pyspark_chappe": {"chappe.spark"},
}
IMPURE: Final = {"asyncio", "os", "random", "secrets", "select", "socket", "threading", "time", "zmq"}
WITHOUT_WORLD: Final = {*CONTRACT, *PURE, *MEMBER, "chappe.subscribers.shares"}

Import = tuple[str, int, bool]  # module, line, only for type checkers


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(module: str, parts: set[str]) -> str | None:
    """The longest of ``parts`` that the module is, or lies in."""
    fitting = [part for part in parts if module == part or (part != "chappe" and module.startswith(part + "."))]
    return max(fitting, key=len, default=None)


def imports_of(tree: ast.AST, module: str, package: bool) -> Iterator[Import]:
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for each in node.body
        for inner in ast.walk(each)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno, id(node) in typing_only
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = module.split(".")[: len(module.split(".")) - node.level + package]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:  # `from chappe.log import batch` imports chappe.log.batch
                inner = f"{base}.{alias.name}"
                is_module = (SOURCE / inner.replace(".", "/")).with_suffix(".py").exists()
                is_module = is_module or (SOURCE / inner.replace(".", "/") / "__init__.py").exists()
                yield inner if is_module else base, node.lineno, id(node) in typing_only


def complaints(source: str, module: str, package: bool = False) -> list[str]:
    """What is wrong with the imports of one module, one sentence each."""
    part = part_of(module, set(ALLOWED))
    if part is None:
        return [f"{module}: no layer of tests/test_layers.py has a place for it"]
    found = []
    for target, line, typing_only in imports_of(ast.parse(source), module, package):
        top = target.partition(".")[0]
        if top in ("chappe", "pyspark_chappe"):
            allowed = ALLOWED[part] | {part}
            if part_of(target, allowed) is None:
                found.append(f"{module}, line {line}: {part} must not import {target}")
        elif top in IMPURE and not typing_only and part_of(module, WITHOUT_WORLD) is not None:
            found.append(f"{module}, line {line}: a core has no {top}; the driver hands in what it needs")
    return found


def test_no_compiled_class_is_made_by_abcmeta() -> None:
    """Compiled classes would share the memory of ``isinstance`` with all others of their base: a clone, once known
    as one, could count as a master."""
    compiled = [SOURCE / name for names in parts(list(PARTS)).values() for name in names]
    assert len(compiled) > 50
    assert [str(path) for path in compiled if re.search(r"\bABC(Meta)?\b", path.read_text())] == []


@pytest.mark.parametrize("path", modules(), ids=name_of)
def test_imports_go_downwards(path: Path) -> None:
    assert complaints(path.read_text(), name_of(path), path.name == "__init__.py") == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("chappe.log.store", "import time"),
        ("chappe.log.store", "def later():\n    from threading import Event"),
        ("chappe.log.store", "from chappe.runtime.log_ports import LogPorts"),
        ("chappe.data.topic", "from chappe.core import Report"),
        ("chappe.mesh.forwarding.routing", "from chappe.log import batch"),
        ("chappe.runtime.log_ports", "import chappe.api"),
        ("chappe.api.log.producer", "from ...cli import main"),
        ("chappe.web.app", "from chappe.runtime import log_ports"),
        ("chappe.stray", ""),
    ],
)
def test_an_import_upwards_or_of_the_world_is_found(module: str, source: str) -> None:
    assert len(complaints(source, module)) == 1


def test_a_type_of_the_world_may_be_named() -> None:
    assert complaints("if TYPE_CHECKING:\n    import random", "chappe.log.store") == []


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})


def test_no_module_imports_itself_over_others() -> None:
    names = {name_of(path): path for path in modules()}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():  # types included
        found = imports_of(ast.parse(path.read_text()), name, path.name == "__init__.py")
        graph[name] = {each for each, _, _ in found} & set(names) - {name}
    assert circle(graph) == []
