"""The notebook in `examples` runs from its first cell to its last one, in a kernel of its own, and shows its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import nbformat
import pytest
from nbclient import NotebookClient
from tests.waiting import PATIENCE_S

NOTEBOOK: Final = Path(__file__).parent.parent / "examples" / "topics.ipynb"


def shown(cell: Any, kind: str) -> str:
    """The last thing that a cell displays, as text or HTML."""
    return str(cell.outputs[-1].data[kind])


@pytest.mark.process
def test_the_notebook_runs_and_shows_its_tables(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    assert not any(each.get("outputs") for each in notebook.cells), "outputs are not committed"
    client = NotebookClient(notebook, timeout=int(PATIENCE_S), resources={"metadata": {"path": str(tmp_path)}})
    client.execute()

    cells = {each.source: each for each in notebook.cells if each.cell_type == "code"}

    def ending(last: str) -> Any:
        (found,) = [each for source, each in cells.items() if source.splitlines()[-1] == last]
        return found

    topics = shown(cells["chappe.list_topics(tower=tower)"], "text/html")
    assert "1 topic<" in topics
    assert "2,880" in topics
    batch = shown(ending("batch"), "text/html")
    assert "sensors/temperature, partition" in batch
    assert "kitchen" in batch
    [frame] = [each for source, each in cells.items() if "to_polars" in source]
    assert "2026-01-31 " in shown(frame, "text/plain")
    [answer] = [each for source, each in cells.items() if "duckdb.sql" in source]
    assert [row.split("│")[1:4] for row in shown(answer, "text/plain").splitlines() if "1440" in row] == [
        [" cellar  ", "  1440 ", "   12.0 "],
        [" kitchen ", "  1440 ", "   21.0 "],
    ]
    [evening] = [each for source, each in cells.items() if "frame.group_by" in source]
    assert "360" in shown(evening, "text/plain")
    assert "data store limits, master: 2 entries" in shown(ending("limits"), "text/html")
    assert "2 endpoints and 1 link" in shown(cells["one.topology()"], "text/html")
