"""The files of an experiment: the object and its serving, prompts of a ConfigMap, and the folder of results."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import IO, Any

import yaml

from paceline_engine.trial import making
from paceline_engine.trial.facts import ResultError
from paceline_operator import naming
from paceline_operator.api.experiment import Prompts, SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.written import misnamed
from paceline_operator.experiment import results
from paceline_operator.experiment.results import VariantResult
from paceline_operator.local.document import documents, parse, serving_of
from paceline_operator.local.mistake import UserError
from paceline_operator.preflight import evidence

CONFIG_MAP = "ConfigMap"
KEPT = "experiment.yaml"
"""In the folder of results: the experiment and its serving as they were run. Prompts are not in it."""
LOGS = "logs"


@dataclass(frozen=True)
class Given:
    """What was read."""

    name: str
    experiment: SpeculationExperiment
    serving: SpeculativeServing
    documents: tuple[Mapping[str, Any], ...]
    """Both as written."""
    prompts: bytes | None = None
    """A dataset, JSON a line; or lengths, CSV."""
    prompts_name: str = ""

    @property
    def digest(self) -> str:
        """Of what decides what is measured, as written; the experiment's own name and budget do not."""
        written: dict[str, Any] = {"mode": "json", "by_alias": True, "exclude_unset": True}
        whole = {
            "experiment": self.experiment.spec.model_dump(exclude={"budget_gpu_minutes", "suspend"}, **written),
            "serving": self.serving.spec.model_dump(**written),
            "prompts": sha256(self.prompts) if self.prompts else None,
        }
        return sha256(json.dumps(whole, sort_keys=True).encode())


def read(paths: Sequence[Path], dataset: Path | None = None) -> Given:
    """Of files that hold a SpeculationExperiment, the SpeculativeServing that it names and, where it takes its prompts
    from one, the ConfigMap. Raises UserError that names file and remedy."""
    found = _documents(paths)
    experiment, written, path = _experiment(found, paths)
    wanted = naming.KIND_SERVING, experiment.spec.serving_ref.name
    if wanted not in found:
        raise UserError(
            f"{_all(paths)}: no {naming.KIND_SERVING} {wanted[1]}, which spec.servingRef names: "
            "write it into the same file, or give its file with another -f"
        )
    serving_path, serving_written = found[wanted]
    serving = serving_of(serving_written, serving_path)
    prompts, name = _prompts(experiment, serving, found, dataset, path)
    return Given(
        experiment.metadata.name,
        experiment,
        serving,
        (serving_written, written),
        prompts,
        name,
    )


def of_cluster(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """What of files goes into a cluster: the experiment first, then ConfigMaps. Raises UserError."""
    found = _documents(paths)
    _, written, _ = _experiment(found, paths)
    return [written, *(body for (kind, _), (_, body) in found.items() if kind == CONFIG_MAP)]


Found = Mapping[tuple[str, str], tuple[Path, dict[str, Any]]]
"""(kind, name) -> the file that it is in, and the document."""


def _documents(paths: Sequence[Path]) -> Found:
    found: dict[tuple[str, str], tuple[Path, dict[str, Any]]] = {}
    for path in paths:
        for document in documents(path):
            kind = document.get("kind")
            if kind not in (naming.KIND_EXPERIMENT, naming.KIND_SERVING, CONFIG_MAP):
                raise UserError(
                    f"{path}: kind {kind!r} is none of {naming.KIND_EXPERIMENT}, {naming.KIND_SERVING} and {CONFIG_MAP}"
                )
            if kind != CONFIG_MAP and document.get("apiVersion") != naming.API_VERSION:
                raise UserError(
                    f"{path}: {kind}: apiVersion is {document.get('apiVersion')!r}, not {naming.API_VERSION}"
                )
            metadata = document.get("metadata")
            name = str(metadata.get("name")) if isinstance(metadata, dict) else ""
            if (kind, name) in found:
                raise UserError(f"{path}: {kind} {name} is there twice: keep one")
            found[kind, name] = path, document
    return found


def _experiment(found: Found, paths: Sequence[Path]) -> tuple[SpeculationExperiment, dict[str, Any], Path]:
    """The one that is there, as parsed and as written, and its file."""
    experiments = [place for place in found if place[0] == naming.KIND_EXPERIMENT]
    if len(experiments) != 1:
        said = "no document" if not experiments else f"{len(experiments)} documents"
        raise UserError(f"{_all(paths)}: {said} of kind {naming.KIND_EXPERIMENT}: one is needed")
    path, written = found[experiments[0]]
    experiment = parse(SpeculationExperiment, written, path)
    for mistake in (*misnamed(experiment), *evidence.of_experiment(experiment.spec)):
        raise UserError(f"{path}: {mistake}")
    return experiment, written, path


def _prompts(
    experiment: SpeculationExperiment,
    serving: SpeculativeServing,
    found: Found,
    dataset: Path | None,
    path: Path,
) -> tuple[bytes | None, str]:
    source = experiment.spec.load.prompts
    longest = serving.spec.engine.max_model_len or 0
    if source.random:
        if dataset:
            raise UserError(f"--dataset {dataset}: spec.load.prompts of {path} are random: remove one of the two")
        return None, ""
    if dataset:
        try:
            return _read(source, dataset.read_bytes(), longest, str(dataset)), dataset.name
        except OSError as error:
            raise UserError(f"--dataset {dataset}: cannot be read: {error.strerror}") from None
    if source.kept is None:
        raise UserError(
            f"{path}: spec.load.prompts.persistentVolumeClaim is of a cluster: give the file with --dataset"
        )
    name, key = source.kept.name, source.kept.key
    if (CONFIG_MAP, name) not in found:
        raise UserError(f"{path}: no ConfigMap {name}, which spec.load.prompts names: write it into the same file")
    file, written = found[CONFIG_MAP, name]
    data = written.get("data")
    text = data.get(key) if isinstance(data, dict) else None
    if not isinstance(text, str):
        raise UserError(f"{file}: ConfigMap {name} has no text under data.{key}, which spec.load.prompts names")
    return _read(source, text.encode(), longest, f"{file}: data.{key}"), f"{name}/{key}"


def _read(source: Prompts, content: bytes, longest: int, where: str) -> bytes:
    """As it is read for the load. Raises UserError."""
    try:
        if source.lengths:
            making.rows(content, longest)
            return content
        making.texts(content)
    except ResultError as error:
        raise UserError(f"{where}: {error}") from None
    return b"\n".join(line for line in content.split(b"\n") if line.strip()) + b"\n"


def sha256(content: bytes) -> str:
    """As digests are written."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def tree(folder: Path) -> str | None:
    """Digest of a model's folder: its configuration, and names and sizes of all files; None where there is none.

    Weights of tens of GB are not read for it.
    """
    try:
        if not folder.is_dir():
            return None
        names = [
            f"{one.relative_to(folder)} {one.stat().st_size}" for one in sorted(folder.rglob("*")) if one.is_file()
        ]
        config = folder / "config.json"
        return sha256("\n".join(names).encode() + (config.read_bytes() if config.is_file() else b""))
    except OSError:
        return None


def kept(folder: Path) -> Given:
    """The experiment whose results are in `folder`. Raises UserError."""
    file = folder / KEPT
    if not file.exists():
        raise UserError(f"{folder}: no {KEPT} is in it: `paceline experiment run` writes it beside its results")
    found = documents(file)
    by_kind = {str(document.get("kind")): document for document in found}
    missing = {naming.KIND_EXPERIMENT, naming.KIND_SERVING} - by_kind.keys()
    if missing:
        raise UserError(f"{file}: no document of kind {min(missing)}")
    experiment = parse(SpeculationExperiment, by_kind[naming.KIND_EXPERIMENT], file)
    for wrong in evidence.of_experiment(experiment.spec):
        raise UserError(f"{file}: {wrong}")
    serving = serving_of(by_kind[naming.KIND_SERVING], file)
    return Given(experiment.metadata.name, experiment, serving, tuple(found))


class Folder:
    """Results on disk, one file a variant, each whole at every moment."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / LOGS
        self._lock: IO[bytes] | None = None

    def earlier(self) -> dict[str, VariantResult]:
        """What is there already, by variant. Raises UserError for what is no result."""
        if not any(self.path.glob("*.json")):
            return {}
        try:
            return {one.variant: one for one in results.folder(self.path)}
        except results.ResultError as error:
            raise UserError(f"{error}; give another folder with -o") from None

    def begin(self, given: Given) -> None:
        """Make the folder, and hold it: two runs would measure beside each other. Raises UserError."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self._lock = (self.path / ".lock").open("wb")
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UserError(f"{self.path}: another run measures into it: wait for its end, or cancel it") from None
            self._write(KEPT, yaml.safe_dump_all(given.documents, sort_keys=False, allow_unicode=True).encode())
        except OSError as error:
            raise UserError(f"{self.path}: cannot be written: {error.strerror}: give another folder with -o") from None

    def write(self, result: VariantResult) -> None:
        """One variant's file. Raises OSError."""
        self._write(
            f"{result.variant}.json", (result.model_dump_json(indent=1, exclude_defaults=False) + "\n").encode()
        )

    def log(self, name: str) -> Path:
        """A new one, for an engine: what an earlier one wrote is not told again as this one's."""
        places = (self.logs / f"{name}{again}.log" for again in chain([""], (f"-{number}" for number in count(2))))
        return next(place for place in places if not place.exists())

    def _write(self, name: str, content: bytes) -> None:
        part = self.path / f".{name}.part"
        part.write_bytes(content)
        part.replace(self.path / name)


def _all(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
