"""Each promise of the originals has a test that exists, and the page says what the file says."""

from __future__ import annotations

import ast
from functools import cache

from tools import promises


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((promises.ROOT / "tests" / f"{file}.py").read_text())
    functions = (each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(each.name.removeprefix("test_") for each in functions if each.name.startswith("test_"))


def test_every_claim_names_tests_that_exist() -> None:
    claims = [claim for source in promises.read(promises.CLAIMS.read_text()).values() for claim in source]
    assert [claim.says for claim in claims if not claim.tests] == []
    named = [test for claim in claims for test in claim.tests]
    assert [test for test in named if test.split("::")[1] not in names_in(test.split("::")[0])] == []


def test_no_claim_stands_twice() -> None:
    says = [claim.says for source in promises.read(promises.CLAIMS.read_text()).values() for claim in source]
    assert len(set(says)) == len(says)


def test_the_page_is_made_of_the_file() -> None:
    assert promises.PAGE.read_text() == promises.render(promises.read(promises.CLAIMS.read_text()))
