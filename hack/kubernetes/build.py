#!/usr/bin/env python3
"""Build the programs of the test cluster from their Go modules into the cache, once.

What is there is not built again, so an interrupted build goes on where it stopped; each file appears whole or not at
all. Needs Go and the Go module proxy, nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from hack.setup.common import cache_folder, lock, run, say

PROGRAMS = Path(__file__).parent / "programs"
"""Our own Go programs: a main.go a folder."""
KUBERNETES = "v1.34.4"
"""1.34 runs on cgroup v1 and v2; later versions refuse v1 by default."""
STAGING = "v0.34.4"
"""The version of the k8s.io modules that are published from the same source."""
GO_DIRECTIVE = "1.24.0"
"""The least; Go raises it to what the modules ask for."""


@dataclass(frozen=True)
class Program:
    """A main package: of a published module, or a main.go of our own that may use one."""

    name: str
    module: str = ""
    version: str = ""
    package: str = ""
    """Import path; absent: our own main.go."""

    @property
    def source(self) -> Path | None:
        """Our own main.go, if it is our own."""
        return None if self.package else PROGRAMS / self.name / "main.go"

    @property
    def path(self) -> Path:
        """Where it belongs. A program of our own is named by its source as well, so that an edit builds another."""
        if self.source is None:
            return cluster_folder() / self.name
        return cluster_folder() / f"{self.name}-{hashlib.sha256(self.source.read_bytes()).hexdigest()[:8]}"


def _kubernetes(name: str) -> Program:
    return Program(name, "k8s.io/kubernetes", KUBERNETES, f"k8s.io/kubernetes/cmd/{name}")


CONTROL_PLANE = (
    Program("etcd", "go.etcd.io/etcd/server/v3", "v3.6.16", "go.etcd.io/etcd/server/v3"),
    _kubernetes("kube-apiserver"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kubectl"),
    Program("helm", "helm.sh/helm/v4", "v4.3.1", "helm.sh/helm/v4/cmd/helm"),
)
NODE = (
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Program("coredns", "github.com/coredns/coredns", "v1.12.4"),
    Program("pause"),
    Program("cp"),
)
ENVTEST = ("etcd", "kube-apiserver", "kubectl")
"""What a folder named by KUBEBUILDER_ASSETS holds by convention."""


def cluster_folder() -> Path:
    """Where the programs are."""
    return cache_folder() / f"kubernetes-{KUBERNETES}"


def find(name: str) -> Path:
    """Path of the program `name`, there or not: from $KUBEBUILDER_ASSETS where that has it, else from the cache."""
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    if assets and name in ENVTEST:
        return Path(assets) / name
    return next(program.path for program in (*CONTROL_PLANE, *NODE) if program.name == name)


def missing(*, node: bool, only: str = "") -> list[Program]:
    """Programs that are not there yet; of `only` that one, where it is named."""
    wanted = (*CONTROL_PLANE, *(NODE if node else ()))
    return [each for each in wanted if only in ("", each.name) and not find(each.name).exists()]


def build(*, node: bool, only: str = "") -> None:
    """Build what is missing: 15 to 20 minutes on two cores with empty Go caches, nothing when it is all there."""
    folder = cluster_folder()
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder.with_name(f"{folder.name}.lock")):
        for leftover in folder.glob(".building-*"):
            shutil.rmtree(leftover)
        wanted = missing(node=node, only=only)
        if wanted and shutil.which("go") is None:
            sys.exit("test cluster: `go` was not found on PATH: install Go (https://go.dev/dl), then run this again")
        with tempfile.TemporaryDirectory(dir=folder, prefix=".building-") as scratch:
            for number, program in enumerate(wanted, start=1):
                _build(program, f"test cluster {number}/{len(wanted)}: {program.name}", Path(scratch) / program.name)
    say(f"test cluster: {only or 'all'} ready in {folder}")


def _build(program: Program, title: str, scratch: Path) -> None:
    scratch.mkdir()
    output = scratch / "program"
    flags: list[str | Path] = ["-trimpath", "-buildvcs=false", "-ldflags", _linker_flags(program), "-o", output]
    if program.source is not None:
        shutil.copy(program.source, scratch / "main.go")
    requirement = f"require {program.module} {program.version}\n" if program.module else ""
    replaced = "".join(_replacements(program))
    (scratch / "go.mod").write_text(f"module test-cluster\n\ngo {GO_DIRECTIVE}\n\n{requirement}{replaced}")
    # -mod=mod: the modules' own go.mod files pin the rest, and the checksum database vouches for all of it.
    command = ["go", "build", "-C", scratch, "-mod=mod", *flags, program.package or "."]
    environment = {"GOWORK": "off"}
    if not program.module.startswith("k8s.io/"):
        environment["CGO_ENABLED"] = "0"
    run(title, command, env=environment)
    output.rename(program.path)


def _linker_flags(program: Program) -> str:
    flags = "-s -w"
    if program.module == "k8s.io/kubernetes":
        # Else the server calls itself v0.0.0-master, and kubectl and Helm stumble over that.
        major, minor = KUBERNETES.removeprefix("v").split(".")[:2]
        values = {"gitVersion": KUBERNETES, "gitMajor": major, "gitMinor": minor}
        flags += "".join(f" -X k8s.io/component-base/version.{name}={value}" for name, value in values.items())
    return flags


def _replacements(program: Program) -> Iterator[str]:
    """k8s.io/kubernetes replaces its staging modules by folders of its own repository; published versions exist."""
    if program.module != "k8s.io/kubernetes":
        return
    command = ["go", "mod", "download", "-json", f"{program.module}@{program.version}"]
    answer = subprocess.run(command, env={**os.environ, "GOWORK": "off"}, capture_output=True, text=True, cwd="/")
    if answer.returncode:
        sys.exit(f"test cluster: {' '.join(command)} failed: {answer.stdout}{answer.stderr}")
    text = Path(json.loads(answer.stdout)["GoMod"]).read_text()
    for name in re.findall(r"^\s*(k8s\.io/\S+) => \./staging/", text, flags=re.MULTILINE):
        yield f"replace {name} => {name} {STAGING}\n"


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--control-plane-only", action="store_true", help="without the programs of a node")
    parser.add_argument("--only", default="", metavar="PROGRAM", help="this one alone")
    asked = parser.parse_args()
    build(node=not asked.control_plane_only, only=asked.only)


if __name__ == "__main__":
    main()
