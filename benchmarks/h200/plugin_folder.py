"""Lay out the plugin as it reaches any vLLM: a folder for PYTHONPATH. Usage: plugin_folder.py DESTINATION."""

import shutil
import sys
import tomllib
from pathlib import Path

root = Path(__file__).resolve().parents[2]
project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
target = Path(sys.argv[1])
shutil.copytree(root / "engine" / "paceline_engine", target / "paceline_engine", dirs_exist_ok=True)
info = target / f"paceline-{project['version']}.dist-info"
info.mkdir(parents=True, exist_ok=True)
(info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: paceline\nVersion: {project['version']}\n")
groups = project["entry-points"]
(info / "entry_points.txt").write_text(
    "".join(f"[{group}]\n" + "".join(f"{n} = {v}\n" for n, v in points.items()) for group, points in groups.items())
)
