"""What tests in a browser have in common: processes, pages that are watched, tables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Dialog, Page
from tests.waiting import PATIENCE_S


@dataclass
class Seen:
    """What a browser did besides showing pages."""

    hosts: set[str] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)


@contextmanager
def started(env: dict[str, str], *command: str) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """A process of Python and the first line that it prints, until the context ends."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", *command], stdin=pipe, stdout=pipe, stderr=None, env=env)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        line = process.stdout.readline().decode().strip()
        yield process, json.loads(line) if line.startswith("{") else line
    finally:
        process.stdin.close()
        process.terminate()
        process.wait(PATIENCE_S)
        process.stdout.close()


@contextmanager
def crowded() -> Iterator[str]:
    """Where a dashboard over stand-ins is."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent.parent), *sys.path])}
    with started(env, "tests.dashboard.stand_in") as (_, url):
        yield url.rstrip("/")


def watched(page: Page, seen: Seen) -> Page:
    """The page, with all that it asks for and complains of noted, and patience."""
    page.set_default_timeout(PATIENCE_S * 1000)
    page.on("request", lambda request: seen.hosts.add(urlsplit(request.url).netloc))
    page.on("websocket", lambda socket: seen.hosts.add(urlsplit(socket.url).netloc))
    page.on("console", lambda said: seen.errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: seen.errors.append(str(error)))

    def dismiss(dialog: Dialog) -> None:
        seen.errors.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.on("dialog", dismiss)
    return page


def rows(page: Page, table: str) -> Any:
    return page.get_by_label(table, exact=True).locator("tbody tr")
