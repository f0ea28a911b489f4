"""A rendered pod's engine container as a command on this machine: same command, arguments and environment.

What a kubelet would do is done here: `$(NAME)` is expanded and volumes become folders. Only addresses differ: a pod has
an address of its own, here engines share loopback and need ports of their own.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paceline_engine
from paceline_engine.protocol import ENV_CONTROL_HOST, ENV_CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.engine import Device
from paceline_operator.local.mistake import UserError
from paceline_operator.local.ports import HOST
from paceline_operator.resources import Defaults, Manifest
from paceline_operator.resources.pod import CONTAINER
from paceline_operator.resources.substitution import expand

MODELS = "/models"
"""Where model paths of a manifest point to: in pods a volume, here the cache folder's models."""
ENV_ENGINE = "PACELINE_ENGINE"
ENV_CACHE = "PACELINE_CACHE"
DISTRIBUTION = "paceline"
DEVICES = Path("/dev")
IMAGES = Defaults(engine_image="local", cpu_engine_image="local", plugin_image="local")
"""Images are names that nothing here looks up."""
FOREIGN = re.compile(r"PYTHON|VIRTUAL_ENV$|VLLM_PLUGINS$|PACELINE_")
"""Variables of this process that are about its own Python, or would change the engine behind the manifest's back."""


@dataclass(frozen=True)
class Command:
    """What to run, and where it will answer."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    serving_port: int
    control_port: int

    @property
    def serving_url(self) -> str:
        """Base URL of the OpenAI-compatible server."""
        return f"http://{HOST}:{self.serving_port}"

    @property
    def control_url(self) -> str:
        """Base URL of the plugin's control port."""
        return f"http://{HOST}:{self.control_port}"


def cache_folder() -> Path:
    """`$PACELINE_CACHE`, else `paceline` in the user's cache folder. UserError where `~` cannot be resolved."""
    given = os.environ.get(ENV_CACHE) or str(Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "paceline")
    try:
        return Path(given).expanduser().resolve()
    except (RuntimeError, ValueError, OSError) as error:
        raise UserError(f"{given!r} is no folder: {error}. Set ${ENV_CACHE} to a folder of yours") from None


def has_gpu() -> bool:
    """Whether a GPU of the kind that manifests ask for (nvidia.com/gpu) can be here: device files, or its tool."""
    return any(DEVICES.glob("nvidia*")) or shutil.which("nvidia-smi") is not None


def check_device(device: Device, where: str) -> None:
    """Raises UserError where a GPU is asked for and none is here; `where`: by what."""
    if device is Device.GPU and not has_gpu():
        raise UserError(f"{where}: no GPU is here: set spec.engine.device: CPU, if vLLM here is built for CPUs")


def find_engine() -> str:
    """The vllm command: `$PACELINE_ENGINE`, this environment's `engine/bin/vllm`, or PATH."""
    if given := os.environ.get(ENV_ENGINE):
        if found := shutil.which(given):
            return found
        raise UserError(f"${ENV_ENGINE} is {given}, which is no program: set it to a vllm command, or unset it")
    ours = Path(sys.prefix) / "engine" / "bin" / "vllm"
    if found := shutil.which(str(ours)) or shutil.which("vllm"):
        return found
    raise UserError(
        f"no engine: neither {ours} nor a vllm command on PATH. Run `make setup` in a clone of paceline, "
        f"or set {ENV_ENGINE} to the vllm command of an environment that has vLLM"
    )


def folders(private: Path, secret: Manifest | None, *, plugin: bool = True) -> dict[str, Path]:
    """Container path -> folder here. Fills the token and plugin folders under `private` as the volumes would be."""
    cache = cache_folder()
    token, plugins = private / "token", private / "plugin"
    token.mkdir(mode=0o700)
    for name, value in (secret or {}).get("stringData", {}).items():
        file = os.open(token / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as stream:
            stream.write(value)
    if plugin:
        _plugin(plugins)
    home = cache / "engine-home"
    try:
        home.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{home}: cannot be made: {error.strerror}. Set ${ENV_CACHE} to a folder of yours") from None
    return {
        MODELS: cache / "models",
        naming.TOKEN_DIRECTORY: token,
        naming.PLUGIN_DIRECTORY: plugins,
        naming.CACHE_DIRECTORY: home,
    }


def _plugin(folder: Path) -> None:
    """The plugin as the init container leaves it: the package, and the metadata that makes vLLM find it."""
    assert paceline_engine.__file__ is not None
    source = Path(paceline_engine.__file__).parent
    shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    installed = importlib.metadata.distribution(DISTRIBUTION)
    info = folder / f"{DISTRIBUTION}-{installed.version}.dist-info"
    info.mkdir()
    for name in ("METADATA", "entry_points.txt"):
        (info / name).write_text(installed.read_text(name) or "")


def command(
    deployment: Manifest, index: int, folders: Mapping[str, Path], serving_port: int, control_port: int
) -> Command:
    """The engine of replica `index`. Raises UserError for what only a cluster can give it."""
    containers = deployment["spec"]["template"]["spec"]["containers"]
    container = next(found for found in containers if found["name"] == CONTAINER)
    wanted = {variable["name"]: _value(variable, folders) for variable in container.get("env", [])}
    environment = {
        **{name: value for name, value in os.environ.items() if not FOREIGN.match(name)},
        **{name: expand(value, wanted) for name, value in wanted.items()},
        ENV_CONTROL_HOST: HOST,
        ENV_CONTROL_PORT: str(control_port),
    }
    arguments = [located(expand(text, environment), folders) for text in container.get("args", [])]
    executable, *rest = container["command"]
    argv = [find_engine() if executable == "vllm" else executable, *rest, *arguments]
    argv = _with(argv, "--host", HOST)
    argv = _with(argv, "--port", str(serving_port))
    name = f"{deployment['metadata']['name']}-{index}"
    return Command(name, tuple(argv), environment, serving_port, control_port)


def located(text: str, folders: Mapping[str, Path]) -> str:
    """`text` with every container path of `folders` (also inside JSON and path lists) replaced by the folder here."""
    pattern = "|".join(re.escape(path) for path in folders)
    return re.sub(rf"(?<![\w./-])({pattern})(?![\w.-])", lambda found: str(folders[found[1]]), text)


def _value(variable: Mapping[str, Any], folders: Mapping[str, Path]) -> str:
    name = str(variable["name"])
    if "valueFrom" not in variable:
        return located(str(variable.get("value", "")), folders)
    if name in os.environ:
        return os.environ[name]
    raise UserError(f"the manifest takes {name} from the cluster ({variable['valueFrom']}): set ${name} here")


def _with(argv: Sequence[str], option: str, value: str) -> list[str]:
    position = argv.index(option)
    return [*argv[: position + 1], value, *argv[position + 2 :]]
