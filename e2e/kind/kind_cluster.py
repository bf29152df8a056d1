"""A cluster that kind runs: the same three nodes on every machine, with any docker engine."""

import json
import os
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from e2e.kind.loading import link, load
from e2e.kind.progress import KindError, Log

NAME = "kvasir"
_READY_WITHIN = "180s"
_REGISTRIES = '[plugins."io.containerd.grpc.v1.cri".registry]\n  config_path = "/etc/containerd/certs.d"'
"""A patch of containerd's configuration: `trust_registry` writes a file there, which needs no restart."""


def config(address: str | None = None, port: int | None = None) -> str:
    """Return kind's configuration, as JSON: one control-plane node and two workers."""
    networking = {} if address is None else {"networking": {"apiServerAddress": address, "apiServerPort": port}}
    nodes = [{"role": "control-plane"}, {"role": "worker"}, {"role": "worker"}]
    patches = {"containerdConfigPatches": [_REGISTRIES]}
    kind = {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4"}
    return json.dumps({**kind, "nodes": nodes, **patches, **networking})


class KindCluster:
    """Three nodes on a docker engine. `builder` is the owner of the store of images: docker or buildah."""

    can_load = True

    def __init__(
        self, kubeconfig: Path, tools: Path | None, settings: dict[str, str], builder: Literal["docker", "buildah"]
    ) -> None:
        self.kubeconfig = kubeconfig
        self.tools = tools
        self._settings = settings
        self.builder = builder

    def environment(self) -> dict[str, str]:
        """Return the environment for programs that use the cluster: KUBECONFIG, PATH and docker's address."""
        path = os.environ.get("PATH", os.defpath)
        found = {"PATH": path if self.tools is None else f"{self.tools}{os.pathsep}{path}"}
        return {"KUBECONFIG": str(self.kubeconfig), **self._settings, **found}

    def create(self, log: Log, image: str | None, configuration: str) -> None:
        """Start the nodes and wait until all are Ready."""
        path = self.kubeconfig.with_name("kind.json")
        path.write_text(configuration)
        options = ["--name", NAME, "--config", str(path), "--kubeconfig", str(self.kubeconfig)]
        options += [] if image is None else ["--image", image]
        log.run("kind", "create", "cluster", "--retain", *options, env=self.environment())
        log.run(
            "kubectl",
            "wait",
            "--for=condition=Ready",
            "node",
            "--all",
            f"--timeout={_READY_WITHIN}",
            env=self.environment(),
        )

    def wait_for_system(self, log: Log) -> None:
        """Wait until the cluster's own pods are ready: DNS, network and storage."""
        options = ("--for=condition=Ready", "pod", "--all", "--all-namespaces", f"--timeout={_READY_WITHIN}")
        log.run("kubectl", "wait", *options, env=self.environment())

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        return self._run("kubectl", *arguments, stdin=stdin)

    def nodes(self) -> list[str]:
        return self.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()

    def load_image(self, source: str | Path, nodes: Sequence[str] | None = None, name: str | None = None) -> str:
        """Load an image into these nodes (default: all) and return its name there.

        `source` is a name, or the Path of an archive. `name` renames an image of buildah's or an archive. Load
        large images only into the nodes that run their pods, because each node may keep a copy.
        """
        targets = list(nodes or self.nodes())
        if self.builder == "buildah":
            return self._load_ourselves(source, targets, name)
        if name is not None:
            raise KindError("cannot rename an image of docker's: run `docker tag` first")
        kind = "image-archive" if isinstance(source, Path) else "docker-image"
        self._run("kind", "load", kind, str(source), "--name", NAME, "--nodes", ",".join(targets))
        return str(source)

    def _load_ourselves(self, source: str | Path, targets: Sequence[str], name: str | None) -> str:
        nodes = [load.Node(node, self._enter(node)) for node in targets]
        if isinstance(source, Path):
            return load.load(source, nodes, name)
        return link.link(source, [link.Place(node, self._var(node.name)) for node in nodes], name)

    def _var(self, node: str) -> Path:
        """Return the path of a node's /var on this machine."""
        path = '{{range .Mounts}}{{if eq .Destination "/var"}}{{.Source}}{{end}}{{end}}'
        return Path(self.docker("inspect", "--format", path, node).strip())

    def docker(self, *arguments: str) -> str:
        """Run docker and return its output. Nodes are containers of the same names."""
        return self._run("docker", *arguments)

    def trust_registry(self, place: str) -> None:
        """Let the nodes pull from a registry without TLS at this host and port."""
        folder = f"/etc/containerd/certs.d/{place}"
        hosts = f'server = "http://{place}"\n[host."http://{place}"]\n  capabilities = ["pull", "resolve"]\n'
        write = f"mkdir -p {folder} && printf %s {shlex.quote(hosts)} > {folder}/hosts.toml"
        for node in self.nodes():
            self.docker("exec", node, "sh", "-c", write)

    def stop_node(self, node: str) -> None:
        """Stop a node as in a power failure. Kubernetes reports NotReady after about 40 seconds."""
        self.docker("stop", "--time", "0", node)

    def start_node(self, node: str) -> None:
        self.docker("start", node)

    def _enter(self, node: str) -> tuple[str, ...]:
        docker = "docker" if self.tools is None else str(self.tools / "docker")
        return (docker, "-H", self._settings["DOCKER_HOST"], "exec", "-i", node)

    def _run(self, *command: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, env={**os.environ, **self.environment()}
        )
        if done.returncode:
            raise KindError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout
