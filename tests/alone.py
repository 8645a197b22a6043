"""Tests that count what a process has open run in one of their own: what others left is still being closed."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import ParamSpec

P = ParamSpec("P")


def alone(function: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Call a module's function in a process of its own, of whose descriptors nothing else has any."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(function, *args, **kwargs).result()
