"""Make docs/reference/seeds.md of tests/promises.toml: promises of the originals, and tests that show them.

python -m tools.promises
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
CLAIMS: Final = ROOT / "tests/promises.toml"
PAGE: Final = ROOT / "docs/reference/seeds.md"
HEAD: Final = """# Promises of the originals

chappe continues Broker, Dafka and the patterns of the ZeroMQ Guide. Each promise of their documents is a row: what
keeps it here, how that differs from the original, and the tests that show it.

| document | promises | kept otherwise |
|---|---|---|
"""


@dataclass(frozen=True)
class Claim:
    """One promise; ``differs`` is empty where it is kept as the original keeps it."""

    says: str
    here: str
    tests: tuple[str, ...]
    differs: str = ""

    def row(self) -> str:
        """Its row of the page's table."""
        shown = "<br>".join(f"[{name.replace('_', ' ')}]({path})" for path, name in map(place, self.tests))
        return f"| {self.says} | {self.here} | {self.differs} | {shown} |"


def place(test: str) -> tuple[str, str]:
    """The link from the page to the file of ``api/test_tokens::name``, and the name of the test."""
    file, name = test.split("::")
    return f"../../tests/{file}.py", name


def read(text: str) -> dict[tuple[str, str], list[Claim]]:
    """The claims of each document, by its name and address.

    Raises:
        KeyError: A claim lacks a part.
        tomllib.TOMLDecodeError: The file is not TOML.
    """
    return {
        (source["name"], source["link"]): [
            Claim(each["says"], each["here"], tuple(each["tests"]), each.get("differs", ""))
            for each in source["claims"]
        ]
        for source in tomllib.loads(text)["source"]
    }


def render(sources: dict[tuple[str, str], list[Claim]]) -> str:
    """The page: a count of each document, then a table of each."""
    counts = [
        f"| {name} | {len(claims)} | {sum(bool(c.differs) for c in claims)} |" for (name, _), claims in sources.items()
    ]
    parts = [
        "\n".join(
            [
                f"## {name}\n\n[The document]({link}).\n\n| promise | here | differs | shown by |\n|---|---|---|---|",
                *(claim.row() for claim in claims),
            ]
        )
        for (name, link), claims in sources.items()
    ]
    return HEAD + "\n\n".join(["\n".join(counts), *parts]) + "\n"


if __name__ == "__main__":
    PAGE.write_text(render(read(CLAIMS.read_text())))
