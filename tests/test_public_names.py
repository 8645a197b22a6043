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
