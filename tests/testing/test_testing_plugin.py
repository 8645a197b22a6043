"""The plugin, as pytest finds it where chappe is installed."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
from tests.test_docs import PLUGIN, ROOT

pytest_plugins = ["pytester"]


def test_fixtures_are_there_and_a_program_that_fails_fails_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import time
        from chappe import Consumer

        def program():
            with Consumer("readings") as readings:
                for record in readings:
                    int(record.value)

        def test_good(chappe_log, chappe_world):
            assert chappe_log.world is chappe_world
            chappe_world.start(program)
            chappe_log.write("readings", "1")
            time.sleep(50)

        def test_bad(chappe_log):
            chappe_log.world.start(program)
            chappe_log.write("readings", "one")
            chappe_log.world.advance(10)
    """)
    done = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:cacheprovider", "-p", "no:xdist")
    done.assert_outcomes(passed=2, errors=1)
    done.stdout.fnmatch_lines(["*ERROR at teardown of test_bad*", "*ValueError: invalid literal for int()*"])


def test_the_package_names_its_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"chappe": "chappe.testing.plugin"}


@pytest.mark.parametrize(
    "code",
    [
        "import sys, chappe.testing.plugin; assert not {'zmq', 'asyncio', 'chappe.api'} & set(sys.modules)",
        "import sys; sys.modules['pytest'] = None; import chappe.testing; chappe.testing.World",
    ],
    ids=["loading it imports nothing", "a world needs no pytest"],
)
@pytest.mark.process
def test_what_is_imported(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
