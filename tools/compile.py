"""Compile the pure parts of chappe with mypyc, from the same source that runs without it.

    python -m tools.compile DIR        the compiled modules, each in DIR where its source is in src

The build of a wheel calls it (``tools/wheel_hook.py``) and puts them beside their sources. It needs a C compiler,
Python's headers, mypy and setuptools; without one of them, or with CHAPPE_PURE=1, it says so in a line and ends with 3,
and where something does not compile with 1; the caller goes on without. Each part is a library of its own, since C
compilers take long for a large one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
REQUIRED: Final = (
    "mypy>=2.4",
    "setuptools>=65",
    "msgspec>=0.19",
    "cramjam>=2.11",
    "crc32c>=2.7",
)  # for compiling; the last three have types
PURE: Final = "CHAPPE_PURE"  # set to anything but 0: compile nothing
CANNOT: Final = 3  # exit code where something is missing that compiling needs
OPTIMIZATION: Final = "1"  # as fast as 2 here, and compiled in two thirds of the time (docs/explanation/speed.md)

# mypyc looks for the types of fields among a module's own names, where it does not find these; on the same line, so
# that errors name the lines of the sources.
FUTURE: Final = "from __future__ import annotations"
NAMED: Final = "from builtins import Exception, frozenset, memoryview, object, set"
# At the end of each module, so that no line of the sources moves.
REPAIR: Final = "from chappe.compiled import repair_pickling; repair_pickling(__name__)"

# What mypyc cannot make: kinds of int, str, bytes and tuple, and what holds them; Structs that are generic; dataclasses
# that give something else to what their base has without asking for it. And what is inherited from elsewhere.
LEFT_ALONE: Final = {
    *(
        "data/logical.py",
        "data/scalars.py",
        "data/values.py",
        "data/zeek.py",
        "channel/messages.py",
        "mesh/events.py",
        "kv/events.py",
    ),
    "kv/chained/machine.py",
}
# Each part by its name: folders, with all that is in them, and files, also by patterns. Nodes and loops are not among
# them, since their classes change in a child that the process forks (``system/forking.py``); transports gain nothing.
PARTS: Final = {
    "data": ("data",),
    "log": (  # without consuming and member, whose classes others inherit from, which mypyc refuses
        *("log/batch.py", "log/messages.py", "log/producer.py", "log/consumer.py", "log/delivery.py"),
        *("log/beginnings.py", "log/gap.py", "log/sources.py", "log/clocks.py"),
        *("core.py", "deadlines.py"),
    ),
    "mesh": ("mesh", "member.py"),
    "kv": ("channel", "kv/*.py", "kv/commands", "kv/chained"),  # not chp, which is seldom busy
}


class Cannot(Exception):
    """Why nothing can be compiled here, in a sentence."""


class Failed(Exception):
    """What was wrong with the sources, as the compiler says it."""


def main(arguments: Sequence[str]) -> int:
    """Compile what is asked for; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.compile", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("directory", type=Path, metavar="DIR", help="a new or empty directory")
    parser.add_argument("--part", action="append", choices=[*PARTS], help="only these")
    parser.add_argument("--optimization", choices=["0", "1", "2", "3"], default=OPTIMIZATION, help="of the C compiler")
    asked = parser.parse_args(arguments)
    wanted = parts(asked.part or [*PARTS])
    try:
        check_tools()
        compile_parts(wanted, asked.directory, asked.optimization)
    except Cannot as error:
        print(f"compile: {error}", file=sys.stderr)
        return CANNOT
    except Failed as error:
        print(
            f"compile: it does not compile here, so nothing is compiled; the last lines say why:\n{error}",
            file=sys.stderr,
        )
        return 1
    count = sum(map(len, wanted.values()))
    print(f"compile: {count} modules in {len(wanted)} parts are compiled in {asked.directory}", file=sys.stderr)
    return 0


def parts(names: Sequence[str]) -> dict[str, list[str]]:
    """The files of each part, relative to ``src``; none is in two."""
    taken: set[str] = set(LEFT_ALONE)
    found: dict[str, list[str]] = {}
    source = ROOT / "src" / "chappe"
    for name, places in PARTS.items():
        files: list[str] = []
        for place in places:
            each = source / place
            some = sorted(each.rglob("*.py")) if each.is_dir() else sorted(source.glob(place))
            files += [str(path.relative_to(source)) for path in some if path.name != "__init__.py"]
        files = [each for each in files if each not in taken]
        taken.update(files)
        found[name] = [f"chappe/{each}" for each in files]
    return {name: files for name, files in found.items() if name in names and files}


def is_pure() -> bool:
    """Whether the environment asks for Python alone."""
    return os.environ.get(PURE, "0") not in ("", "0")


def check_tools() -> None:
    """Raises Cannot where something is missing, or nothing is to be compiled."""
    if is_pure():
        raise Cannot(f"{PURE} is set, so nothing is compiled")
    check_compiler()
    missing = [each for each in ("mypyc", "setuptools", "msgspec", "cramjam", "crc32c") if find_spec(each) is None]
    if missing:
        install = " ".join("mypy" if each == "mypyc" else each for each in missing)
        raise Cannot(f"what compiling needs is not installed, so nothing is compiled: pip install {install}")


def check_compiler() -> None:
    """Raises Cannot where there is no C compiler, or no headers of Python."""
    command = (sysconfig.get_config_var("CC") or "cc").split()
    with tempfile.TemporaryDirectory() as directory:
        trial = Path(directory) / "trial.c"
        trial.write_text("#include <Python.h>\n")
        include = f"-I{sysconfig.get_path('include')}"
        try:
            done = subprocess.run(
                [*command, include, "-c", str(trial), "-o", str(trial.with_suffix(".o"))],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
        except OSError:
            raise Cannot(f"there is no C compiler ({command[0]}), so nothing is compiled") from None
    if done.returncode:
        raise Cannot("Python's headers are missing (Debian: apt install python3-dev), so nothing is compiled")


def compile_parts(wanted: dict[str, list[str]], into: Path, optimization: str) -> None:
    """Put the compiled modules of all parts under ``into``. Raises Failed."""
    into = into.absolute()
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="chappe-compile-") as directory:
        shutil.copytree(
            ROOT / "src" / "chappe", Path(directory) / "chappe", ignore=shutil.ignore_patterns("__pycache__")
        )
        (Path(directory) / "chappe" / "__init__.py").write_text("")  # it imports all there is, for mypy to read
        for each in (Path(directory) / file for files in wanted.values() for file in files):
            text = each.read_text("utf-8").replace(FUTURE, f"{FUTURE}; {NAMED}", 1)
            each.write_text(f"{text}\n\n{REPAIR}\n", "utf-8")
        command = [sys.executable, str(Path(__file__)), "--in-copy", str(into), optimization]
        command += [f"{name}={','.join(files)}" for name, files in wanted.items()]
        env = os.environ | {"MYPYPATH": ".", "PYTHONHASHSEED": "0"}
        done = subprocess.run(command, cwd=directory, env=env, stdin=subprocess.DEVNULL, check=False, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip
        if done.returncode:
            raise Failed("\n".join(done.stdout.strip().splitlines()[-20:]))


def in_copy(into: str, optimization: str, *described: str) -> None:
    """What runs in a copy of the sources, which becomes full of what lies about when C is compiled."""
    from mypyc.build import mypycify
    from setuptools import setup

    named = [each.partition("=") for each in described]
    groups = [(files.split(","), f"chappe_{name}") for name, _, files in named]
    options = [
        *("--config-file=", "--namespace-packages", "--explicit-package-bases", "--ignore-missing-imports"),
    ]
    extensions = mypycify(
        [*options, *[each for files, _ in groups for each in files]],
        separate=list(groups), opt_level=optimization, debug_level="0", target_dir="build",
    )  # fmt: skip
    if sys.platform == "linux":
        for each in extensions:
            each.extra_link_args.append("-Wl,--strip-all")
            each.extra_compile_args.append("-Wno-all")  # Python's flags bring these warnings, which take gcc long
    setup(
        name="chappe", packages=[], ext_modules=extensions, script_name="setup.py",
        script_args=["--quiet", "build_ext", "--build-lib", into, "--build-temp", "build/objects",
                     "--parallel", str(os.cpu_count() or 1)],
    )  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-copy"]:
        in_copy(*sys.argv[2:])
    else:
        sys.exit(main(sys.argv[1:]))
