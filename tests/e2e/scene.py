"""One serving on the node with everything around it: the chart, the operator as a process, a load, and eyes on all."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator.naming import COMPONENT_PULLER, LABEL_COMPONENT, LABEL_SERVING
from tests.harness.chart import CHART, helm
from tests.harness.node import Node
from tests.harness.processes import Daemon, wait_until

Object = dict[str, Any]
T = TypeVar("T")
LOAD = Path(__file__).with_name("load.py")
FETCH = """
import sys, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": "Bearer " + sys.stdin.read()})
sys.stdout.buffer.write(urllib.request.urlopen(request, timeout=5).read())
"""


@dataclass
class Scene:
    """The serving `name` in `namespace`; the operator lives in the same namespace. Logs go to the node's.

    `alone`: the operator watches no other namespace, and has no right to.
    """

    node: Node
    namespace: str
    name: str
    operators: int = 0
    alone: bool = False
    lease_seconds: int = 8
    """After which another operator takes over."""

    def kubectl(self, *arguments: str, **options: Any) -> str:
        """Standard output of kubectl in the namespace."""
        return self.node.kubectl("--namespace", self.namespace, *arguments, **options).stdout

    def install(self, *values: str) -> None:
        """The chart; without `values` with its CRDs and rights but no operator pod: a process can be killed better."""
        options = ["--namespace", self.namespace, *(f"--set={value}" for value in values or ("replicas=0",))]
        options += [f"--set=watchNamespaces={{{self.namespace}}}"] if self.alone else []
        helm("install", "paceline", CHART, *options, kubeconfig=self.node.kubeconfig, prefix=self.node.prefix)

    @contextmanager
    def operator(self) -> Iterator[Daemon]:
        """The operator with the rights of the chart's service account, in the node's network; SIGKILL at the end."""
        self.operators += 1
        name = f"operator-{self.operators}"
        token = self.kubectl("create", "token", "paceline").strip()
        key = self.node.folder / "master-key"
        key.write_bytes(self._secret("paceline-master-key")["keys"])
        environment = {
            "KUBECONFIG": str(self.node.write_kubeconfig(name, token=token)),
            "PACELINE_NAMESPACE": self.namespace,
            "PACELINE_MASTER_KEY_FILE": str(key),
            "PACELINE_HTTP_HOST": "127.0.0.1",
            "PACELINE_LEASE_SECONDS": str(self.lease_seconds),
            "PACELINE_IDENTITY": name,
            "PACELINE_WATCH_NAMESPACES": self.namespace if self.alone else "",
        }
        command = [sys.executable, "-m", "paceline_operator"]
        daemon = Daemon(name, [*self.node.prefix, *command], self.node.logs_dir, env=environment)
        try:
            yield daemon
        finally:
            daemon.stop(grace_seconds=0)

    @contextmanager
    def load(self, concurrency: int, *options: str) -> Iterator[Object]:
        """A load through the serving's Service; what became of its requests is in the dict after the block."""
        address = self.kubectl("get", "service", self.name, "--output=jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
        url = f"http://{address}/v1/completions"
        command = [*self.node.prefix, sys.executable, str(LOAD), url, self.name, str(concurrency), *options]
        report: Object = {}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield report
            finally:
                # Closes standard input, by which the load ends.
                report |= json.loads(process.communicate()[0])

    def serving(self) -> Object:
        """The object as it is now."""
        found: Object = json.loads(self.kubectl("get", "speculativeserving", self.name, "--output=json"))
        return found

    def status(self) -> Object:
        """Its status, empty before the first."""
        status: Object = self.serving().get("status", {})
        return status

    def condition(self, kind: str) -> tuple[str, str]:
        """(status, reason) of a condition; ("", "") before it is there."""
        conditions = {each["type"]: each for each in self.status().get("conditions", [])}
        found = conditions.get(kind, {})
        return found.get("status", ""), found.get("reason", "")

    def pods(self) -> list[Object]:
        """All pods of the serving, those that end included and those of Jobs left out."""
        chosen = f"--selector={self._children},{LABEL_COMPONENT}!={COMPONENT_PULLER}"
        listed = json.loads(self.kubectl("get", "pods", chosen, "--output=json"))
        return list(listed["items"])

    def pod(self) -> Object:
        """The one engine pod."""
        (found,) = self.pods()
        return found

    def state(self) -> Object:
        """`GET /state` of the engine's control port, with its token."""
        url, token = self._control
        command = [*self.node.prefix, sys.executable, "-c", FETCH, url]
        answer = subprocess.run(command, input=token, capture_output=True, text=True)
        if answer.returncode:
            raise ConnectionError(answer.stderr.strip().splitlines()[-1])
        state: Object = json.loads(answer.stdout)
        return state

    @cached_property
    def _control(self) -> tuple[str, str]:
        """Address and token of the first engine pod's control port: a pod that takes its place has another."""
        (secret,) = self.kubectl("get", "secrets", f"--selector={self._children}", "--output=name").split()
        token = self._secret(secret.removeprefix("secret/"))["current"].decode()
        return f"http://{self.pod()['status']['podIP']}:{CONTROL_PORT}/state", token

    @property
    def _children(self) -> str:
        return f"{LABEL_SERVING}={self.name}"

    def wait(self, what: str, probe: Callable[[], T | None], seconds: float, *daemons: Daemon) -> T:
        """Until `probe` answers something; else TimeoutError that tells status and the engine's state.

        The time it took is printed: pytest shows it with a failure.
        """
        began = time.monotonic()
        try:
            answer = wait_until(probe, what, timeout_seconds=seconds, daemons=daemons, every_seconds=1.0)
        except TimeoutError as error:
            for seen in (self.status, self.state):
                with suppress(Exception):
                    error.add_note(f"{seen.__name__}: {json.dumps(seen(), indent=1)}")
            raise
        print(f"{what}: {time.monotonic() - began:.1f} s")
        return answer

    def _secret(self, name: str) -> dict[str, bytes]:
        data = json.loads(self.kubectl("get", "secret", name, "--output=jsonpath={.data}"))
        return {key: base64.b64decode(value) for key, value in data.items()}
