"""The examples in C, Java and Go, written from the page on the protocol alone, exchange records with our members.

They are skipped where a compiler, libzmq's headers or what Maven and Go fetch is absent.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from tests.waiting import PATIENCE_S

from chappe import Consumer, Producer, Store

pytestmark = [pytest.mark.interop, pytest.mark.process]

ROOT: Final = Path(__file__).parents[2]
SOURCES: Final = ROOT / "examples" / "clients"
PAGE: Final = ROOT / "docs" / "how-to" / "other-languages.md"
LINES: Final = [b"", "Grüße".encode(), b"tab\tand \xff", *(b"line %d" % n for n in range(997))]
FIRST_JAVA: Final = 17


def wanted(*programs: str) -> None:
    for each in programs:
        if shutil.which(each) is None:
            pytest.skip(f"{each} is not here")


def libzmq() -> list[str]:
    """The compiler's options for libzmq."""
    wanted("pkg-config")
    found = subprocess.run(["pkg-config", "--cflags", "--libs", "libzmq"], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("libzmq and its headers are not here")
    return found.stdout.split()


def fetched(directory: Path, *command: str) -> None:
    """Let a build tool fetch libraries; skip where it cannot."""
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=PATIENCE_S)
    if done.returncode:
        pytest.skip(f"{command[0]} cannot fetch libraries: {(done.stdout + done.stderr).strip()[-200:]}")


def build_c(directory: Path) -> list[str]:
    wanted("gcc")
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O2"]
    subprocess.run(["gcc", *strict, "client.c", "-o", "client", *libzmq()], cwd=directory, check=True)
    return [str(directory / "client")]


def build_java(directory: Path) -> list[str]:
    wanted("javac", "mvn")
    said = subprocess.run(["javac", "-version"], capture_output=True, text=True, check=True)
    version = re.search(r"\d+", said.stdout + said.stderr)
    if version is None or int(version[0]) < FIRST_JAVA:
        pytest.skip(f"Java {FIRST_JAVA} or later is not here")
    fetched(directory, "mvn", "-q", "-B", "dependency:copy-dependencies")
    libraries = str(directory / "target" / "dependency" / "*")
    classes = str(directory / "target" / "classes")
    source = str(directory / "src" / "main" / "java" / "Client.java")
    subprocess.run(["javac", "-Xlint:all", "-Werror", "-cp", libraries, "-d", classes, source], check=True)
    return ["java", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{libraries}", "Client"]


def build_go(directory: Path) -> list[str]:
    wanted("go", "gcc")
    libzmq()
    fetched(directory, "go", "mod", "download")
    subprocess.run(["go", "build", "-o", "client", "."], cwd=directory, check=True)
    return [str(directory / "client")]


BUILDS: Final = {"c": build_c, "java": build_java, "go": build_go}


@pytest.fixture(scope="module", params=BUILDS)
def language(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def program(language: str, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs an example, which was built outside the sources."""
    directory = tmp_path_factory.mktemp(language) / "client"
    shutil.copytree(SOURCES / language, directory)
    return BUILDS[language](directory)


@dataclass(frozen=True)
class Client:
    """An example, and the tower where its processes meet others."""

    program: list[str]
    tower: str
    stack: ExitStack

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        task, *rest = arguments
        command = [*self.program, task, self.tower, *rest]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.stack.callback(process.communicate)
        self.stack.callback(process.kill)
        return process

    def produce(self) -> subprocess.Popen[bytes]:
        """A producer that was given all lines and their end."""
        process = self.start("produce", "t")
        assert process.stdin is not None
        process.stdin.write(b"".join(line + b"\n" for line in LINES))
        process.stdin.close()
        process.stdin = None
        return process

    def consume(self) -> subprocess.Popen[bytes]:
        return self.start("consume", "t", str(len(LINES)))


@pytest.fixture
def client(program: list[str], tower: str) -> Iterator[Client]:
    with ExitStack() as stack:
        yield Client(program, tower, stack)


def lines_of(process: subprocess.Popen[bytes]) -> list[bytes]:
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    return output.split(b"\n")[:-1]


def stored(tower: str) -> list[bytes | None]:
    with Consumer("t", tower=tower) as consumer:
        return [record.value for record in consumer.to_end(PATIENCE_S)]


def test_once_it_has_ended_a_store_has_all_that_it_produced(client: Client, store: Store) -> None:
    assert lines_of(client.produce()) == []
    assert stored(client.tower) == LINES


def test_it_keeps_records_until_there_is_a_store(client: Client, tmp_path: Path) -> None:
    """Nobody hears its records when they are published: the store has them by FETCH."""
    producer = client.produce()
    with Consumer("t", tower=client.tower) as consumer:
        assert consumer.poll(PATIENCE_S) is not None, "it has published nothing"
    assert producer.poll() is None
    with Store(tmp_path / "late", tower=client.tower):
        lines_of(producer)
        assert stored(client.tower) == LINES


def test_it_consumes_while_we_produce(client: Client, store: Store) -> None:
    consumer = client.consume()
    with Producer("t", tower=client.tower) as producer:
        for line in LINES:
            producer.send(line)
            producer.flush()
    assert lines_of(consumer) == LINES


def test_it_consumes_all_though_it_joins_late(client: Client, store: Store) -> None:
    with Producer("t", tower=client.tower) as producer:
        producer.send_many(LINES)
    assert lines_of(client.consume()) == LINES


def test_it_consumes_from_a_producer_where_there_is_no_store(client: Client) -> None:
    with Producer("t", tower=client.tower, min_acks=0) as producer:
        producer.send_many(LINES)
        assert lines_of(client.consume()) == LINES


def test_its_processes_understand_each_other(client: Client, store: Store) -> None:
    consumer = client.consume()
    lines_of(client.produce())
    assert lines_of(consumer) == LINES


@pytest.mark.usefixtures("program", "store")  # with the program built, the page's build needs nothing that is absent
def test_its_part_of_the_page_runs_as_printed(language: str, tower: str, tmp_path: Path) -> None:
    shutil.copytree(SOURCES / language, tmp_path / "examples" / "clients" / language)
    part = re.search(rf"^## {language}\n.*?^```console\n(.*?)^```", PAGE.read_text(), re.I | re.M | re.S)
    assert part is not None
    lines = re.sub(r"^\$ ", "", part[1], flags=re.M).replace("127.0.0.1:5556:5557", tower)
    done = subprocess.run(
        ["bash", "-e", "-o", "pipefail", "-c", lines],
        cwd=tmp_path, stdout=subprocess.PIPE, check=True, timeout=PATIENCE_S,
    )  # fmt: skip
    printed = done.stdout.replace(b"\x1b[0m", b"")  # Maven's, though it writes into no terminal
    assert printed.split() == [b"%d" % number for number in range(1, 1001)]
