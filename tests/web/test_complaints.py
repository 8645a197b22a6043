"""What goes wrong in a task of the dashboard or of the WebSocket face is told, and not without end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from chappe.web.connections import COMPLAIN_S, TaskFailures


class Loop:
    """Of asyncio's, what complaints need."""

    def __init__(self) -> None:
        self.now = 0.0
        self.told: list[str] = []

    def time(self) -> float:
        return self.now

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.told.append(context["message"])


def test_what_goes_wrong_again_and_again_is_told_once_a_minute() -> None:
    loop: Any = Loop()
    complain = TaskFailures()
    for _ in range(1_000):
        complain(loop, {"message": "it failed"})
    assert loop.told == ["it failed"]
    loop.now = COMPLAIN_S
    complain(loop, {"message": "it failed again"})
    assert loop.told[1:] == ["it failed again (and 999 more since the last one)"]


def test_asyncio_asks_it() -> None:
    """A task that fails, and that nobody waits for."""
    told: list[str] = []

    async def failing() -> None:
        raise ValueError("garbage")

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(TaskFailures())
        loop.default_exception_handler = lambda context: told.append(context["message"])  # type: ignore[method-assign]
        for _ in range(3):
            task = asyncio.create_task(failing())
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            del task

    asyncio.run(main())
    assert told == ["Task exception was never retrieved"]
