#!/usr/bin/env python3
"""Set chappe up in a project-local environment and run it. Needs Python 3.11+ and nothing else.

python3 run.py demo [...]      the demo: this machine's measurements through tower, store, producer and Spark
python3 run.py test            the whole test suite, in four processes, on the wheel of these sources
python3 run.py test ...        the tests that arguments for pytest choose, in one process, on the sources
python3 run.py check           format, lint and types
python3 run.py docs            the documentation as a site, in site/; says where to open it
python3 run.py chappe ...      any command of chappe
python3 run.py wheel           build the wheel of these sources and install it beside the environment

The environment is the folder .venv beside this file. It is made on the first run, and made anew when
pyproject.toml or the Python version has changed since. test and check add the development tools to it, docs what
builds the site; that done, docs needs no network.

The wheel is what pip installs: compiled where a C compiler is, else Python alone. Where a C compiler is, the first
demo or command of chappe also starts wheel, in the background and with the lowest priority. demo and chappe run the
wheel from then on, until the sources change. With CHAPPE_PURE=1 nothing is compiled, and demo and chappe run the
sources.
"""

import sys

try:
    import hashlib
    import os
    import shutil
    import subprocess
    import sysconfig
    from pathlib import Path
    from typing import IO
except KeyboardInterrupt:
    sys.exit(130)

if sys.version_info < (3, 11):  # noqa: UP036  (before anything that an older Python cannot read)
    sys.exit(
        "run.py: chappe needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try: python3.12 run.py"
    )

if sys.platform == "win32":
    sys.exit("run.py: chappe runs on Linux and macOS, and on Windows within WSL 2 (wsl --install): run it there")

PROJECT = Path(__file__).resolve().parent
VENV = PROJECT / ".venv"
STAMP = VENV / "chappe-stamp"
WHEELS = VENV / "wheels"  # an environment in it for each state of the sources of which there is a wheel
WHEEL_LOCK = VENV / "wheel.lock"
WHEEL_LOG = VENV / "wheel.log"
BIN = VENV / "bin"
PYTHON = BIN / "python"
EXTRAS = "arrow,avro,connect,dashboard,demo,metrics,pandas,protobuf,rocksdb,schemas,spark,tls,tracing,web"
# Dependency groups of pyproject.toml, each with all of the one before; what they are called, and the MB fetched in all.
GROUPS = {
    "": ("chappe and Spark", 600),
    "docs": ("chappe, Spark and what builds the site", 630),
    "dev": ("chappe, Spark and the tools", 780),
}
NEEDS = {"test": "dev", "check": "dev", "docs": "docs"}
# Of all tests, which mostly wait. A worker that dies ends the run: pytest-xdist may wait for ever for what replaces it.
WORKERS = ("--numprocesses", "4", "--dist", "loadscope", "--no-loadscope-reorder", "--max-worker-restart", "0")
CHECKS = (("ruff", "format", "--check", "."), ("ruff", "check", "."), ("mypy",))


def main(arguments: list[str]) -> int:
    """Run what ``arguments`` ask for; returns the exit code where it does not replace this process."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__.strip())
        return 0 if arguments else 2
    command, rest = arguments[0], arguments[1:]
    if command not in ("demo", "test", "check", "docs", "chappe", "wheel"):
        return _complain(f"unknown command {command!r}; choose demo, test, check, docs, chappe or wheel")
    # Many images keep Python from writing byte code, and each process would compile the sources here anew.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        problem = _set_up(NEEDS.get(command, ""))
    except KeyboardInterrupt:
        return _complain("the set-up was interrupted; the next run goes on with it", 130)
    if problem:
        return _complain(problem)
    if command == "check":
        return _check()
    if command == "docs":
        return _become([str(PYTHON), str(PROJECT / "website" / "build.py")])
    if command == "wheel" or (command == "test" and not rest):
        problem = _make_wheel()
        if problem:
            return _complain(problem)
    if command == "wheel":
        return 0
    if command == "test":
        os.chdir(PROJECT)
        return _become([str(PYTHON if rest else _python_of(_place())), "-m", "pytest", *(rest or WORKERS)])
    return _become([str(_choose_python()), "-m", "chappe", *([] if command == "chappe" else ["demo"]), *rest])


def _complain(text: str, code: int = 1) -> int:
    print("run.py: " + text, file=sys.stderr)
    return code


def _say(text: str) -> None:
    print("run.py: " + text, file=sys.stderr, flush=True)


def _stamp(group: str) -> str:
    """What the environment depends on: another value means that it must be brought up to date."""
    wanted = f"{EXTRAS},{group}".rstrip(",")
    parts = (sys.version, wanted, str(PROJECT), (PROJECT / "pyproject.toml").read_text(encoding="utf-8"))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _set_up(group: str) -> str:
    """Make the environment unless it is up to date; returns what went wrong, or nothing.

    The packages of ``group`` are there, too. An environment that has those of a later group serves as well.
    """
    stamp = _stamp(group)
    enough = [_stamp(each) for each in list(GROUPS)[list(GROUPS).index(group) :]]
    if STAMP.is_file() and PYTHON.exists() and STAMP.read_text(encoding="utf-8").strip() in enough:
        return ""
    STAMP.unlink(missing_ok=True)
    problem = _make_venv()
    if problem:
        return problem
    what, size = GROUPS[group]
    _say(f"installing {what} into .venv (once; about {size} MB are fetched, allow some minutes)")
    # pip's progress goes to standard error: standard output belongs to the command that follows.
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]
    groups = (*_packages(group), *(_packages("wheel") if _has_compiler() else ()))
    wanted = [*pip, "install", "--editable", f"{PROJECT}[{EXTRAS}]", *groups]
    if subprocess.call(wanted, stdout=sys.stderr, stdin=subprocess.DEVNULL):
        return _why_pip_failed(pip)
    STAMP.write_text(stamp + "\n", encoding="utf-8")
    _say("ready")
    return ""


def _make_venv() -> str:
    version = "import sys; print(sys.version)"
    if PYTHON.exists():
        found = subprocess.run([str(PYTHON), "-c", version], capture_output=True, text=True, check=False)
        if found.returncode == 0 and found.stdout.strip() == sys.version.strip():
            has_pip = subprocess.run([str(PYTHON), "-m", "pip", "--version"], capture_output=True, check=False)
            if has_pip.returncode == 0:
                return ""
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return (
            "this Python cannot make virtual environments: its modules venv and ensurepip are missing. "
            "Install them (Debian and Ubuntu: apt install python3-venv) or use another Python 3.11 or newer"
        )
    _say("making .venv with Python " + sys.version.split()[0])
    shutil.rmtree(VENV, ignore_errors=True)
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"the environment {VENV} could not be made: " + " ".join((made.stdout + made.stderr).split()[-40:])
    return ""


def _packages(group: str) -> list[str]:
    """Those of a group of pyproject.toml and of the groups in it; read here because pip before version 25.1 cannot."""
    if not group:
        return []
    import tomllib

    with (PROJECT / "pyproject.toml").open("rb") as file:
        entries = tomllib.load(file)["dependency-groups"][group]
    return [
        name
        for entry in entries
        for name in (_packages(entry["include-group"]) if isinstance(entry, dict) else [entry])
    ]


def _why_pip_failed(pip: list[str]) -> str:
    probe = [*pip, "download", "--quiet", "--retries", "0", "--timeout", "10", "--no-deps", "--no-cache-dir", "--dest"]
    trial = VENV / "probe"
    reached = subprocess.run(
        [*probe, str(trial), "hatchling"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    shutil.rmtree(trial, ignore_errors=True)
    if reached.returncode:
        return (
            "pip cannot reach a package index. Check the network and, behind a proxy or mirror, "
            "set HTTPS_PROXY or PIP_INDEX_URL; then run the same command again"
        )
    return "pip could not install what chappe needs; its last lines above say why. Then run the same command again"


def _check() -> int:
    for command in CHECKS:
        _say(" ".join(command))
        code = subprocess.call([str(PYTHON), "-m", *command], cwd=PROJECT)
        if code:
            return code
    return 0


def _has_compiler() -> bool:
    """Whether compiling is worth a try; tools/compile.py finds out whether it works."""
    pure = os.environ.get("CHAPPE_PURE", "0") not in ("", "0")
    command = (sysconfig.get_config_var("CC") or "cc").split()
    return not pure and shutil.which(command[0]) is not None


def _place() -> Path:
    """The environment with the wheel of the sources in their present state, whether it exists or not."""
    state = hashlib.sha256(f"{sys.version}\0{_has_compiler()}\0".encode())
    others = (PROJECT / "pyproject.toml", *(PROJECT / "tools").glob("*.py"))
    for path in sorted((*(PROJECT / "src").rglob("*.py"), *others)):
        state.update(f"{path.relative_to(PROJECT)}\0".encode() + path.read_bytes() + b"\0")
    return WHEELS / state.hexdigest()[:16]


def _python_of(place: Path) -> Path:
    return place / "bin" / "python"


def _is_whole(place: Path) -> bool:
    return (place / "whole").is_file()


def _choose_python() -> Path:
    """The one with the wheel of these sources, or else with the sources; the first time, start making the wheel."""
    if not _has_compiler():
        return PYTHON
    place = _place()
    if _is_whole(place):
        return _python_of(place)
    if WHEELS.is_dir():
        if any(map(_is_whole, WHEELS.iterdir())) and not _is_locked():
            _say("the sources have changed since their wheel was made, so they run as they are; to mend: run.py wheel")
        return PYTHON
    WHEELS.mkdir()
    with WHEEL_LOG.open("wb") as log:
        subprocess.Popen(
            ["nice", "-n", "19", str(PYTHON), str(PROJECT / "run.py"), "wheel"],
            cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    _say(f"compiling hot parts in the background, for the runs after this one ({WHEEL_LOG} has more)")
    return PYTHON


def _is_locked() -> bool:
    with WHEEL_LOCK.open("w") as lock:
        return not _take(lock)


def _take(lock: IO[str]) -> bool:
    """Whether no other process makes a wheel; none will while the file is open."""
    import fcntl

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _make_wheel() -> str:
    """Build the wheel of the sources and install it in an environment of its own; returns what went wrong, or nothing.

    The environment takes what chappe depends on from ``.venv``, whose packages are the next ones on its path.
    """
    import fcntl

    WHEELS.mkdir(exist_ok=True)
    with WHEEL_LOCK.open("w") as lock:
        if not _take(lock):
            _say("another run makes the wheel; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        place = _place()
        if _is_whole(place):
            return ""
        former = sorted(filter(_is_whole, WHEELS.iterdir()), key=lambda each: each.stat().st_mtime)
        _say("building the wheel of these sources" + (", which compiles for some minutes" if _has_compiler() else ""))
        problem = _fill(place)
        if not problem and place != _place():
            problem = "the sources changed while their wheel was built; run the same command again"
        if problem:
            shutil.rmtree(place, ignore_errors=True)
            return problem
        (place / "whole").touch()
        for each in set(WHEELS.iterdir()) - {place, *former[-1:]}:  # the last one may still be running somewhere
            shutil.rmtree(each, ignore_errors=True)
    _say("the wheel is installed; demo and chappe run it from now on")
    return ""


def _fill(place: Path) -> str:
    """Make the environment at ``place``; returns what went wrong, or nothing."""
    shutil.rmtree(place, ignore_errors=True)
    build = [str(PYTHON), "-m", "hatchling", "build", "-t", "wheel", "-d", str(place / "dist")]
    if subprocess.call(build, cwd=PROJECT, stdin=subprocess.DEVNULL, stdout=sys.stderr):
        return "the wheel could not be built; the last lines above say why"
    (wheel,) = (place / "dist").glob("*.whl")
    if wheel.name.endswith("-any.whl") and _can_compile():
        return "the wheel is not compiled though a C compiler is here; the lines above say why"
    pip = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "--python", str(_python_of(place)), "install"]
    for command in (
        [str(PYTHON), "-m", "venv", "--without-pip", str(place)],
        [*pip, "--quiet", "--no-deps", "--no-index", str(wheel)],
    ):
        if subprocess.call(command, stdin=subprocess.DEVNULL, stdout=sys.stderr):
            return "the wheel could not be installed; the last lines above say why"
    (packages,) = place.glob("lib/python*/site-packages")
    ours = VENV / packages.relative_to(place)
    (packages / "chappe-dependencies.pth").write_text(f"{ours}\n", encoding="utf-8")
    return ""


def _can_compile() -> bool:
    from tools.compile import Cannot, check_compiler

    try:
        check_compiler()
    except Cannot:
        return False
    return _has_compiler()


def _become(command: list[str]) -> int:
    """Run ``command`` in the place of this process, so that signals and the exit code are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "posix":
        os.execv(command[0], command)
    return subprocess.call(command)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
