"""Every public name is documented, importable and typed."""

from __future__ import annotations

from pathlib import Path

import chappe

REFERENCE = Path(__file__).parent.parent / "docs" / "reference" / "library.md"


def test_every_public_name_is_in_the_reference() -> None:
    text = REFERENCE.read_text()

    assert [name for name in chappe.__all__ if name != "__version__" and name not in text] == []


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name in chappe.__all__ if not getattr(chappe, name).__doc__] == []


def test_the_package_carries_its_types() -> None:
    assert Path(chappe.__file__).with_name("py.typed").exists()


def test_every_public_method_has_a_docstring() -> None:
    """Those of asyncio faces are described at the blocking ones."""
    public = [getattr(chappe, name) for name in chappe.__all__ if not name.startswith("Async")]

    assert [
        f"{kind.__name__}.{name}"
        for kind in public
        if isinstance(kind, type)
        for name, member in vars(kind).items()
        if not name.startswith("_") and (callable(member) or isinstance(member, (property, classmethod)))
        if not getattr(member, "__doc__", None)
    ] == []
