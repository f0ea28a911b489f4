"""Every label, annotation, field manager, port and child name, once. docs/labels.md is the public list."""

from __future__ import annotations

from paceline_engine.protocol import ENV_CONTROL_HOST as ENV_CONTROL_HOST
from paceline_engine.protocol import ENV_CONTROL_PORT as ENV_CONTROL_PORT
from paceline_engine.protocol import ENV_TOKEN_DIRECTORY as ENV_TOKEN_DIRECTORY
from paceline_engine.protocol import TOKEN_FILE_CURRENT as TOKEN_FILE_CURRENT
from paceline_engine.protocol import TOKEN_FILE_PREVIOUS as TOKEN_FILE_PREVIOUS

GROUP = "paceline.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND_SERVING = "SpeculativeServing"
PLURAL_SERVING = "speculativeservings"
KIND_EXPERIMENT = "SpeculationExperiment"
PLURAL_EXPERIMENT = "speculationexperiments"
KIND_PROFILE = "SpeculationProfile"
PLURAL_PROFILE = "speculationprofiles"
FIELD_MANAGER = "paceline-operator"
CLI_MANAGER = "paceline-cli"
"""Of what a person changes by `paceline`."""

LABEL_NAME = "app.kubernetes.io/name"
LABEL_INSTANCE = "app.kubernetes.io/instance"
LABEL_COMPONENT = "app.kubernetes.io/component"
LABEL_MANAGED_BY = "app.kubernetes.io/managed-by"
LABEL_SERVING = f"{GROUP}/serving"
"""On every child: the name of the SpeculativeServing it belongs to."""
LABEL_TRACK = f"{GROUP}/track"
"""On pods and in their Deployment's selector: which of a serving's groups of pods they belong to."""
TRACK_STABLE = "stable"
TRACK_CANARY = "canary"
TRACK_PLAIN = "plain"
LABEL_EXPERIMENT = f"{GROUP}/experiment"
"""On the Job and the pod of an experiment's engine, which have no label of a serving: nothing selects them."""
LABEL_VARIANT = f"{GROUP}/variant"
LABEL_VISIT = f"{GROUP}/visit"
"""Number of the engine in the experiment's plan."""
ANNOTATION_REVISION = f"{GROUP}/revision"
"""On a Deployment: the ControllerRevision whose template it has."""
ANNOTATION_RETRY = f"{GROUP}/retry"
"""On a serving: another value asks for another try of what was rolled back."""
ANNOTATION_TEMPLATE_HASH = f"{GROUP}/template-hash"
"""On the Deployment: `<version>:<hash>` of the pod template as rendered.

The version is there so that an operator upgrade restarts nothing."""
ANNOTATION_UNPINNED_MODE = f"{GROUP}/unpinned-mode"
"""On a serving that `paceline pin` pinned: the tuning.mode that `paceline unpin` returns to."""
APP = "paceline"
COMPONENT_ENGINE = "engine"
"""The pods that replicas counts and clients reach by the Service of the serving's name."""
COMPONENT_PLAIN = "engine-plain"
"""Engines without a drafter, beside them."""
COMPONENT_WORKER = "engine-worker"
"""Pods of an engine over several nodes, its leader apart: they serve nobody by themselves."""
COMPONENT_TRIAL = "experiment"
"""Engines of experiments, each with its load beside it."""
COMPONENT_PULLER = "puller"
"""Pods that bring weights onto a claim."""

INCIDENTS = "incidents"
"""Suffix of the ConfigMap with the records of engines that ended."""

EXPERIMENT = "experiment"
RESULT = "result"
VISIT = "visit"
"""Suffixes of an experiment's ConfigMaps, what is run and one for each variant, and of its Jobs."""

SERVING_PORT = 8000
SERVING_PORT_NAME = "http"
CONTROL_PORT_NAME = "paceline"
TOKEN_DIRECTORY = "/etc/paceline/token"  # noqa: S105 a path
TOKEN_VOLUME = "paceline-token"  # noqa: S105 a volume's name
PLUGIN_DIRECTORY = "/opt/paceline/plugin"
PLUGIN_CONTAINER = "paceline-plugin"
PLUGIN_VOLUME = "paceline-plugin"
CACHE_DIRECTORY = "/var/cache/paceline"


def child(serving: str, suffix: str = "") -> str:
    """`<serving>` or `<serving>-<suffix>`: name of a child, at most 63 characters (CEL limits the serving's to 40)."""
    return f"{serving}-{suffix}" if suffix else serving


def labels(serving: str) -> dict[str, str]:
    """Labels of every child."""
    return {
        LABEL_NAME: APP,
        LABEL_INSTANCE: serving,
        LABEL_COMPONENT: COMPONENT_ENGINE,
        LABEL_MANAGED_BY: FIELD_MANAGER,
        LABEL_SERVING: serving,
    }


def track_labels(track: str) -> dict[str, str]:
    """What tells a track's pods from those of others."""
    component = {LABEL_COMPONENT: COMPONENT_PLAIN} if track == TRACK_PLAIN else {}
    return {LABEL_TRACK: track} | component


def selector(serving: str) -> dict[str, str]:
    """Immutable subset of `labels` that Deployment, Service and PodDisruptionBudget select by."""
    return {LABEL_SERVING: serving, LABEL_COMPONENT: COMPONENT_ENGINE}
