"""The hook of hatchling that has a wheel's pure parts compiled, where that is possible; ``tools.compile`` does it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileHook(BuildHookInterface[BuilderConfig]):
    """Puts the compiled modules beside their sources in the wheel, whose name then has this Python and platform."""

    _made: Path | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, unless it is an editable wheel or ``CHAPPE_PURE`` is set; where it cannot be, the wheel is pure."""
        if version != "standard":
            return
        self._made = Path(tempfile.mkdtemp(prefix="chappe-wheel-"))
        command = [sys.executable, str(Path(self.root) / "tools" / "compile.py"), str(self._made)]
        done = subprocess.run(command, stdin=subprocess.DEVNULL)
        made = sorted(each for each in self._made.rglob("*") if each.is_file())
        if done.returncode or not made:
            self.app.display_info("chappe is installed as Python alone, which does all it does, slower")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update({str(each): str(each.relative_to(self._made)) for each in made})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled."""
        if self._made is not None:
            shutil.rmtree(self._made, ignore_errors=True)
