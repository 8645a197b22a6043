"""The documentation does what it says: the tutorial's blocks run, links lead somewhere, options are described."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.commands import commands_of, whole_program
from tests.ports import free_address, free_ports
from tests.waiting import PATIENCE_S, SPARK_S, until
from tests.zygote import on_path

from chappe import Producer, Store, Tower, read_topic

if TYPE_CHECKING:
    from _pytest.mark import ParameterSet

ROOT: Final = Path(__file__).parent.parent
# Where chappe was installed before it had its plugin, pytest does not find that by itself.
INSTALLED: Final = bool(entry_points(group="pytest11", name="chappe"))
PLUGIN: Final = [] if INSTALLED else ["-p", "chappe.testing.plugin"]
PAGES: Final = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page that its reader runs; a title says where another one belongs."""
    return [(language, text) for language, title, text in all_blocks(page) if not title]


def all_blocks(page: Path) -> list[tuple[str, str, str]]:
    """Language, title and text of every code block of a page."""
    return re.findall(r'^```(\w+)(?: title="([^"]*)")?\n(.*?)^```', page.read_text(), re.DOTALL | re.MULTILINE)


# The ports that pages name, which are taken on the machine that runs this.
SAID: Final = (
    *("5570", "6556", "7077", "7801", "7802", "7803", "8081", "8788", "9109"),
    *("9980", "9990", "9996", "9997", "9998", "9999"),
)


class Reader:
    """Someone who types what a page says, in a directory of their own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = {said: str(free_ports(3)) for said in SAID}
        # The wheel is tested in an environment of its own, and what it depends on has its scripts elsewhere.
        spark = find_spec("pyspark")
        places = [Path(sys.executable).parent, *([] if spark is None else [Path(str(spark.origin)).parents[4] / "bin"])]
        path = os.pathsep.join([*map(str, places), os.environ.get("PATH", "")])
        mesh, maps = (f"127.0.0.1:{self._ports[said]}" for said in ("9999", "5570"))
        self.tower = f"{free_address()}:{free_ports()}"
        self._env = os.environ | {
            "PATH": path,
            "HOME": str(directory),
            "CHAPPE_TOWER": self.tower,
            "CHAPPE_MESH_LISTEN": mesh,
            "CHAPPE_MAP_AT": maps,
            "CHAPPE_MAP_SERVERS": maps,
        }
        self._background: list[subprocess.Popen[bytes]] = []

    def type(self, line: str) -> None:
        line = self._at_free_ports(line)
        if line.startswith("export "):
            done = subprocess.run(
                ["bash", "-c", f"{line}; env -0"],
                cwd=self._directory,
                env=self._env,
                check=True,
                stdout=subprocess.PIPE,
            )
            self._env = dict(each.split("=", 1) for each in done.stdout.decode().rstrip("\0").split("\0"))
        elif line.endswith("&"):
            words = line.rstrip("& ").split()
            self._background.append(subprocess.Popen(words, cwd=self._directory, env=self._env))
            for place in self._places(line):
                self._wait_for(place)
        elif line.startswith("kill %"):
            process = self._background[int(line.removeprefix("kill %")) - 1]
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
        else:
            env = on_path(self._env)
            subprocess.run(["bash", "-c", line], cwd=self._directory, env=env, check=True, timeout=SPARK_S)

    def _places(self, line: str) -> Iterator[str]:
        """Where those listen whom a line starts."""
        kinds = ("node", "kv", "map", "dashboard", "chain", "reply", "schemas")
        alone = tuple(f"chappe {each}" for each in kinds)
        if not line.startswith(alone):
            yield self.tower.rpartition(":")[0]
        elif line.startswith("chappe node") and "--listen" not in line:
            yield self._env["CHAPPE_MESH_LISTEN"]
        elif line.startswith("chappe map") and "--at" not in line:
            yield self._env["CHAPPE_MAP_AT"]
        for host, port in re.findall(r"--(?:at|listen|host|tower) ([\d.]*)(?::| --port )([1-9]\d*)", line):
            yield f"{host or '127.0.0.1'}:{port}"

    def save(self, name: str, text: str) -> None:
        """Put what a page shows into a file of this name."""
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self._with_ports(text).replace("/tmp/", f"{self._directory}/"))

    def run(self, code: str) -> None:
        code = self._with_ports(code)
        subprocess.run([sys.executable, "-c", code], cwd=self._directory, env=self._env, check=True, timeout=SPARK_S)

    def _at_free_ports(self, line: str) -> str:
        """Commands dial the default port of the mesh where a page does not say whom; here another may have it."""
        told = r"chappe (publish|subscribe|request|reply|kv (get|put|list)|node --map)\b"
        if re.match(told, line) and "--peer" not in line:
            line = (
                line.replace(" > ", f" --peer {self._env['CHAPPE_MESH_LISTEN']} > ")
                if " > " in line
                else (f"{line} --peer {self._env['CHAPPE_MESH_LISTEN']}")
            )
        elif line == "chappe dashboard &":
            line = "chappe dashboard --at 127.0.0.1:8788 &"
        return self._with_ports(line)

    def _with_ports(self, text: str) -> str:
        for said, port in self._ports.items():
            text = re.sub(rf"\b{said}\b", port, text)
        return text

    def _wait_for(self, place: str) -> None:
        host, port = place.split(":")

        def there() -> bool:
            try:
                socket.create_connection((host, int(port)), PATIENCE_S).close()
            except OSError:
                return False
            return True

        until(there, f"somebody who listens at {place}")

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


def play_together(reader: Reader, page: Path) -> int:
    """Type all commands of a page, then run its code as one program: to start one for each block takes longest."""
    found = blocks(page)
    for language, text in found:
        for line in text.splitlines() if language == "console" else ():
            reader.type(line.removeprefix("$ "))
    reader.run("".join(text for language, text in found if language == "python"))
    return len(found)


# Each has a test of its own: below, in tests/interop/test_other_languages.py, or in tests/cli/test_troubleshoot.py.
OTHERWISE: Final = {"cluster", "other-languages", "recipes", "recipes-spark", "test-your-program", "troubleshoot"}

STARTS_SPARK: Final = ("declarative-pipelines", "pipelines")
# One process of Spark for all of these: it takes longer to start than to do what they say.
WITH_SPARK: Final = ("archive-and-replay", "read-with-spark", "tables", "write-exactly-once")


NEEDS: Final[dict[str, list[pytest.MarkDecorator]]] = {
    **{name: [pytest.mark.spark] for name in STARTS_SPARK},
    "schemas": [pytest.mark.skipif(find_spec("fastavro") is None, reason="needs chappe[schemas]")],
}


def how_tos() -> list[ParameterSet]:
    pages = [each for each in sorted((ROOT / "docs/how-to").glob("*.md")) if each.stem not in OTHERWISE]
    return [
        pytest.param(page, id=page.stem, marks=NEEDS.get(page.stem, []))
        for page in pages
        if not page.stem.startswith("from-") and page.stem not in WITH_SPARK
    ]


@pytest.mark.process
@pytest.mark.spark
def test_how_tos_with_spark_run_as_printed(reader: Reader) -> None:
    found = [block for name in WITH_SPARK for block in blocks(ROOT / f"docs/how-to/{name}.md")]
    lines = dict.fromkeys(line for language, text in found if language == "console" for line in text.splitlines())
    for line in lines:
        reader.type(line.removeprefix("$ "))
    reader.run("".join(text for language, text in found if language == "python"))


@pytest.mark.process
@pytest.mark.spark
def test_the_page_on_clusters_runs_as_printed(reader: Reader) -> None:
    play_printed(reader, ROOT / "docs/how-to/cluster.md")
    copied = read_topic("copy", tower=reader.tower)["value"].to_pylist()
    assert sorted(map(int, copied)) == list(range(1, 100_001))


@pytest.mark.process
@pytest.mark.parametrize("page", how_tos())
def test_a_how_to_runs_as_printed_in_an_empty_directory(reader: Reader, page: Path) -> None:
    play_printed(reader, page)


def play_printed(reader: Reader, page: Path) -> None:
    """From top to bottom; programs that follow one another are one, as in a notebook."""
    found = [
        (language, title, text)
        for language, title, text in all_blocks(page)
        if not title or ("." in title and " " not in title)
    ]
    assert any(language in ("console", "python") and not title for language, title, _ in found)
    for (language, saved), group in groupby(found, lambda block: (block[0], bool(block[1]))):
        for _, title, text in (same := list(group)):
            if saved:
                reader.save(title, text)
            elif language == "console":
                for line in text.splitlines():
                    assert line.startswith("$ "), line
                    reader.type(line[2:])
        if language == "python" and not saved:
            reader.run("".join(text for _, _, text in same))


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


@pytest.mark.process
@pytest.mark.parametrize("name", ["recipes", pytest.param("recipes-spark", marks=pytest.mark.spark)])
def test_recipes_run(reader: Reader, name: str) -> None:
    assert play_together(reader, ROOT / "docs" / "how-to" / f"{name}.md") > 8


def told_in_tables(page: Path) -> Iterator[str]:
    """The commands in the last column of a page's tables, but for those that run until they are stopped."""
    for row in re.findall(r"^\|.*\|$", page.read_text(), re.MULTILINE):
        *_, last, _ = re.split(r"(?<!\\)\|", row)  # a bar within a cell is written \|
        for code in re.findall(r"`([^`]+)`", last.replace("\\|", "|")):
            if code.startswith(("chappe ", "echo ")) and code not in UNENDING:
                yield code


# What runs until it is stopped, or needs what a page's reader does not have.
UNENDING: Final = {
    "chappe up",
    "chappe node",
    "chappe tower",
    "chappe store DIRECTORY",
    "chappe forward",
    "chappe archive",
    "chappe mesh benchmark",
    "chappe kv serve hosts",
    "chappe node --websocket 9997",
    "chappe record zeek/ --to events --peer :9999",
    "chappe record zeek/ --parquet FOLDER --peer :9999",
    "chappe consume orders --from latest",
    "chappe consume hello --from latest",
}


@pytest.mark.process
@pytest.mark.parametrize("page", sorted((ROOT / "docs/how-to").glob("from-*.md")), ids=lambda page: page.stem)
def test_what_newcomers_are_told_runs(reader: Reader, page: Path) -> None:
    found = blocks(page)
    setting_up = next(text for language, text in found if language == "console")
    for line in setting_up.splitlines():
        reader.type(line.removeprefix("$ "))
    told = list(told_in_tables(page))
    assert len(told) > 8
    for command in told:
        reader.type(command)
    reader.run("".join(text for language, text in found if language == "python"))


def whole_programs() -> list[ParameterSet]:
    """Blocks of Python that need nothing around them, but for Spark's."""
    names = (
        "README.md",
        "docs/how-to/share-state.md",
        "docs/how-to/secure-a-mesh.md",
        "docs/how-to/mesh.md",
        "docs/reference/channel.md",
    )
    pages = [ROOT / name for name in names]
    return [
        pytest.param(text, id=f"{page.stem}-{number}")
        for page in pages
        for number, (language, text) in enumerate(blocks(page))
        if language == "python" and "chappe.spark" not in text
    ]


@pytest.mark.parametrize("code", whole_programs())
def test_a_whole_program_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "page", "exec"), {"__name__": "__main__"})  # here: a process of its own takes half a second


# They need something of the reader's: a moment, certificates, servers, a file that worker processes import.
NOT_ALONE: Final = ("yesterday", "keys-office", "chain.toml", "ShardedConsumer")


def reference_examples() -> list[ParameterSet]:
    found = [text for language, text in blocks(ROOT / "docs/reference/library.md") if language == "python"]
    alone = [text for text in found if not any(each in text for each in NOT_ALONE)]
    return [pytest.param(text, id=str(number)) for number, text in enumerate(alone)]


@pytest.mark.parametrize("code", reference_examples())
def test_an_example_of_the_library_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with Tower("127.0.0.1:0") as tower, Store(tmp_path / "kept", tower=tower.address):
        monkeypatch.setenv("CHAPPE_TOWER", tower.address)
        with Producer("greetings", tower=tower.address) as producer:
            producer.send("so that the topic is there")
            producer.flush(timeout=60)
        exec(compile(code.replace("127.0.0.1:5556", tower.address), "library", "exec"), {"__name__": "__main__"})


@pytest.mark.process
def test_the_tests_of_the_page_on_testing_run(tmp_path: Path) -> None:
    code = [text for language, text in blocks(ROOT / "docs/how-to/test-your-program.md") if language == "python"]
    for name, text in zip(("alarms.py", "test_alarms.py", "test_rooms.py"), code, strict=False):
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *PLUGIN, "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=SPARK_S,
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr


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


def links(page: Path) -> Iterator[tuple[Path, str]]:
    """The files that a page links or shows, each with the heading that is meant."""
    for target in re.findall(r"\]\(([^)\s]+)[^)]*\)", page.read_text()):
        if not target.startswith(("http://", "https://", "mailto:")):
            path, _, heading = target.partition("#")
            yield ((page.parent / path).resolve() if path else page), heading


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them in addresses."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target, heading in links(page):
        assert target.exists(), f"{page}: {target}"
        assert not heading or heading in anchors(target), f"{page}: {target}#{heading}"


def test_every_page_is_in_the_index_and_every_picture_on_a_page() -> None:
    files = {path for path in (ROOT / "docs").rglob("*") if path.is_file()}
    pages = {path for path in files if path.suffix == ".md"}
    index = ROOT / "docs" / "README.md"
    listed = {target for each in (index, ROOT / "docs/explanation/decisions/README.md") for target, _ in links(each)}
    assert pages - listed == {index}
    assert files - pages - {target for page in pages for target, _ in links(page)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_python_in_pages_compiles(page: Path) -> None:
    for language, _, text in all_blocks(page):
        if language == "python":
            compile(text, str(page), "exec")


def typed(page: Path) -> Iterator[list[str]]:
    """The words of every command of chappe that a page has the reader type, without what the shell does with it."""
    for language, _, text in all_blocks(page):
        for line in text.splitlines() if language == "console" else ():
            words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;<>")
            words.whitespace_split = True
            for _, piece in groupby(words, lambda word: set(word) <= set("|&;<>")):
                name, *rest = piece
                if name == "chappe":
                    yield rest


@cache
def program() -> Any:
    return whole_program()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_in_pages_are_understood(page: Path) -> None:
    """There are such commands and options, and values are legal; nothing is done."""
    for words in typed(page):
        command, rest = program(), words
        try:
            while rest and hasattr(command, "commands"):
                rest = command.spelled_out(rest) if hasattr(command, "spelled_out") else rest
                command, rest = command.commands[rest[0]], rest[1:]
            command.make_context("chappe", list(rest))
        except Exception as error:
            pytest.fail(f"chappe {shlex.join(words)}: {error!r}")


SPOKEN: Final = re.compile("“([^”]+)”")  # what a page says that programs say, with … for what varies


@pytest.mark.parametrize(
    "page", [page for page in PAGES if SPOKEN.search(page.read_text())], ids=lambda page: page.stem
)
def test_programs_say_what_pages_say_that_they_say(page: Path) -> None:
    sentences = [" ".join(sentence.split()) for sentence in SPOKEN.findall(page.read_text())]
    assert [each for each in sentences if not said(each)] == []


# Some sentences begin or end with what another part of the sources says.
COMPOSED: Final = (
    "are not stored after",
    "acknowledged the last",
    "in the journal",
    "are lost",
    "in a row",
    "whose TTL",
)


def said(sentence: str) -> bool:
    """True if one literal of the sources has all of it, or one literal each part that a colon ends."""
    if any(each in sentence for each in COMPOSED):
        return all(any(piece in each for each in literals()) for piece in re.split(r"\s*…\s*|: ", sentence))
    parts = sentence.split(": ")
    if any(len(part.split()) < 3 for part in parts):
        parts = [sentence]
    return all(any(map(pattern(part).search, literals())) for part in parts)


def pattern(spoken: str) -> re.Pattern[str]:
    """What a sentence of a page matches."""
    return re.compile(".*?".join(map(re.escape, re.split(r"\s*…\s*", spoken))), re.DOTALL)


@cache
def literals() -> list[str]:
    """The texts in the sources but for docstrings; where values go into them, there is a NUL."""
    found = []
    for path in (ROOT / "src").rglob("*.py"):
        tree = ast.parse(path.read_text())
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(str(each.value) if isinstance(each, ast.Constant) else "\0" for each in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                found.append(node.value)
    return found


def test_every_command_and_option_is_in_the_reference() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    text += (ROOT / "docs" / "reference" / "configuration.md").read_text()
    text += (ROOT / "docs" / "reference" / "pipeline.md").read_text()
    for name, command in commands_of(program()):
        assert f"chappe {name.split()[0]}" in text
        for option in (each for param in command.params for each in param.opts if each.startswith("--")):
            described = option in text or f"`{option[2:]}`" in text
            assert described, f"{name} {option}"


def test_every_setting_is_in_the_reference_with_its_default() -> None:
    from chappe.cli.config import SETTINGS

    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    for setting in SETTINGS:
        assert f"| `{setting.key}` | `{setting.variable}` | `{setting.default}` |" in text


def test_every_variable_of_the_reference_is_read_by_an_option() -> None:
    from chappe.cli.config import SETTINGS

    read = {param.envvar for _, command in commands_of(program()) for param in command.params if param.envvar}
    read.discard("CHAPPE_KEYS")  # a passphrase: it has no place in a file
    read.add("CHAPPE_AUDIT")  # of all commands that serve, and an option of none: ``chappe.cli.serving``
    assert read == {setting.variable for setting in SETTINGS}
