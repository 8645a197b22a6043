"""Addresses of pages, with what is chosen on them: they can be shared, opened directly, and gone back to."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from nicegui import ui


def address(path: str, **chosen: str) -> str:
    """The address of a page on which something is chosen, or nothing."""
    return f"{path}?{urlencode(chosen, quote_via=quote)}" if chosen else path


class Here:
    """The address of one viewer. A choice is made by going to its address: pages change in one way only.

    Args:
        at: Address at which the viewer begins.
    """

    def __init__(self, at: str) -> None:
        self._follow: Callable[[], None] | None = None
        self._path = ""
        self._chosen: dict[str, str] = {}
        self.take(at)

    def take(self, at: str) -> None:
        """The viewer is at another address; a page that stays follows."""
        parts = urlsplit(at)
        path = parts.path.rstrip("/") or "/"
        self._chosen = dict(parse_qsl(parts.query))
        if path != self._path:
            self._path, self._follow = path, None  # another page is built next
        elif self._follow is not None:
            self._follow()

    def follow(self, function: Callable[[], None]) -> None:
        """Call this now, and whenever something else is chosen on the page."""
        self._follow = function
        function()

    def chosen(self, name: str) -> str:
        """The choice of that name in the address; empty if there is none."""
        return self._chosen.get(name, "")


def title(*names: str) -> None:
    ui.page_title(" · ".join((*filter(None, names), "chappe")))
