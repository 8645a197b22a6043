"""The documentation does what it says: the tutorial's blocks run, links lead somewhere, options are described."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from tests.waiting import PATIENCE_S, SPARK_S, until

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of every code block of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def free_ports() -> tuple[int, int]:
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


class Reader:
    """Someone who types what a page says, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ports = free_ports()
        self._mesh = str(free_ports()[0])
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        self._tower = f"127.0.0.1:{ports[0]}:{ports[1]}"
        self._env = os.environ | {"PATH": path, "HOME": str(directory), "CHAPPE_TOWER": self._tower}
        self._background: list[subprocess.Popen[bytes]] = []

    def type(self, line: str) -> None:
        line = line.replace("9999", self._mesh)
        if line.endswith("&"):
            self._background.append(subprocess.Popen(line.rstrip("& ").split(), cwd=self._directory, env=self._env))
            self._wait_for_tower()
        elif line.startswith("kill %"):
            process = self._background[int(line.removeprefix("kill %")) - 1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        else:
            subprocess.run(line, shell=True, cwd=self._directory, env=self._env, check=True, timeout=SPARK_S)

    def run(self, code: str) -> None:
        # The page relies on the default address; here another may be using it.
        code = re.sub(r'(Producer|Consumer)\("greetings"(?!, tower)', rf'\1("greetings", tower="{self._tower}"', code)
        code = code.replace('"chappe").', f'"chappe").option("towers", "{self._tower}").').replace("9999", self._mesh)
        subprocess.run([sys.executable, "-c", code], cwd=self._directory, env=self._env, check=True, timeout=SPARK_S)

    def _wait_for_tower(self) -> None:
        host, port, _ = self._tower.split(":")

        def there() -> bool:
            try:
                socket.create_connection((host, int(port)), PATIENCE_S).close()
            except OSError:
                return False
            return True

        until(there, "a tower that came up")

    def leave(self) -> None:
        for process in self._background:
            process.kill()
            process.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    made = Reader(tmp_path)
    try:
        yield made
    finally:
        made.leave()


def play(reader: Reader, page: Path) -> int:
    """Do everything that a page says; returns how many blocks it had."""
    code = ""
    found = blocks(page)
    for language, text in found:
        if language == "console":
            for line in text.splitlines():
                assert line.startswith("$ "), line
                reader.type(line[2:])
        elif language == "python":
            code += text  # later blocks use the names of earlier ones
            reader.run(text if "import" in text else imports(code) + text)
    return len(found)


def imports(code: str) -> str:
    return "".join(line + "\n" for line in code.splitlines() if line.startswith(("from ", "import ")))


def tutorials() -> list[ParameterSet]:
    pages = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
    marks = {page: [pytest.mark.spark] if "chappe.spark" in page.read_text() else [] for page in pages}
    return [pytest.param(page, id=page.stem, marks=marks[page]) for page in pages]


@pytest.mark.process
@pytest.mark.parametrize("page", tutorials())
def test_the_tutorial_runs(reader: Reader, page: Path) -> None:
    assert play(reader, page) > 3


def whole_programs() -> list[ParameterSet]:
    """Blocks of Python that need nothing around them, but for Spark's."""
    pages = [ROOT / "README.md", ROOT / "docs/how-to/share-state.md", ROOT / "docs/reference/channel.md"]
    return [
        pytest.param(text, id=f"{page.stem}-{number}")
        for page in pages
        for number, (language, text) in enumerate(blocks(page))
        if language == "python" and "chappe.spark" not in text
    ]


@pytest.mark.process
@pytest.mark.parametrize("code", whole_programs())
def test_a_whole_program_runs(reader: Reader, code: str) -> None:
    reader.run(code)


@pytest.mark.process
def test_the_first_program_of_the_examples_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "hello.py")],
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=SPARK_S,
    )
    assert done.stdout.splitlines()[0] == b"0 b'first' b'hello'"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_compiles(page: Path) -> None:
    for language, text in blocks(page):
        if language == "python":
            compile(text, str(page), "exec")


def test_every_command_and_option_is_in_the_reference() -> None:
    from typer.main import get_command

    from chappe.cli.app import app

    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    text += (ROOT / "docs" / "reference" / "configuration.md").read_text()
    program = get_command(app)
    commands = program.commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert f"chappe {name}" in text
        for option in (each for param in command.params for each in param.opts if each.startswith("--")):
            described = option in text or f"`{option[2:]}`" in text
            assert described, f"{name} {option}"


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    from chappe.cli.config import SETTINGS

    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for setting in SETTINGS:
        assert f"| `{setting.key}` | `{setting.variable}` | `{setting.default}` |" in text


def test_every_variable_of_the_reference_is_read_by_an_option() -> None:
    from typer.main import get_command

    from chappe.cli.app import app
    from chappe.cli.config import SETTINGS

    program = get_command(app)
    commands = program.commands  # type: ignore[attr-defined]
    read = {param.envvar for command in commands.values() for param in command.params if param.envvar}
    assert read == {setting.variable for setting in SETTINGS}
