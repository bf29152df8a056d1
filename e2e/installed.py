"""Installs Kvasir in a cluster as docs/install.md describes, after building and loading its images.

`make cluster` runs this as a command and leaves the cluster running. The cluster of KUBECONFIG pulls the images of
manifests/base/kustomization.yaml; nothing is built for it.
"""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

from e2e.kind import cache
from e2e.kind.cluster import Cluster, GivenCluster, cluster, current, exports, up
from e2e.kind.kind_cluster import KindCluster
from e2e.kind.progress import KindError, Progress

ROOT: Final = Path(__file__).parents[1]
DEMO: Final = ROOT / "manifests" / "examples" / "demo.yaml"
NAMESPACE: Final = "kvasir-system"
OPERATOR: Final = "deployment/kvasir-operator"
LIGHT: Final = ("kvasir-operator:dev", "kvasir-frontend:dev")
ENGINE: Final = "kvasir-engine:dev"


def main() -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        there = current()
        if isinstance(there, GivenCluster):
            raise KindError(
                f"KUBECONFIG names an existing cluster, {there.kubeconfig}: install Kvasir in it by `kubectl "
                "apply -k manifests/`, or unset KUBECONFIG to create a new cluster."
            )
        if there is None:
            up()
        with cluster() as running:
            install(running, sys.stdout)
            print(_usage(running))
    except KindError as error:
        print("\n".join([str(error), *getattr(error, "__notes__", ())]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Interrupted. Run `make cluster-down` to remove the cluster.", file=sys.stderr)
        return 130
    return 0


def install(running: Cluster, out: IO[str]) -> None:
    """Build and load images and apply the manifests. Return when the operator runs. Finished steps are quick."""
    loads = isinstance(running, KindCluster)
    progress = Progress(4 if loads else 1, cache.logs(), out)
    if isinstance(running, KindCluster):
        with progress.step("images") as log:
            log.run(sys.executable, "-m", "images.build", "--builder", running.builder, cwd=ROOT)
        workers = schedulable(running)
        with progress.step("load images of operator and frontend"):
            for image in LIGHT:
                running.load_image(image, workers)
        with progress.step("load image of engine"):
            running.load_image(ENGINE, workers)
    with progress.step("install"):
        _apply(running, restart=loads)


def schedulable(running: Cluster) -> list[str]:
    """Return the nodes that accept users' pods, which excludes the control plane."""
    path = "jsonpath={.items[*].metadata.name}"
    return running.kubectl("get", "nodes", "-l", "!node-role.kubernetes.io/control-plane", "-o", path).split()


def image_of_frontends(running: Cluster) -> str:
    """Return the image of frontends in the operator's environment."""
    path = '{.spec.template.spec.containers[0].env[?(@.name=="KVASIR_FRONTEND_IMAGE")].value}'
    return running.kubectl("get", OPERATOR, "-n", NAMESPACE, "-o", f"jsonpath={path}")


def _apply(running: Cluster, restart: bool) -> None:
    before = running.kubectl("get", OPERATOR, "-n", NAMESPACE, "--ignore-not-found", "-o", "name")
    running.kubectl("apply", "-k", str(ROOT / "manifests"))
    if before and restart:  # the images' tags are unchanged, but their content may have changed
        running.kubectl("rollout", "restart", "-n", NAMESPACE, OPERATOR)
    wait_for_definition(running.kubectl)
    running.kubectl("rollout", "status", "-n", NAMESPACE, OPERATOR, "--timeout=120s")


def wait_for_definition(kubectl: Callable[..., str]) -> None:
    """Wait until the API server serves InferenceServices."""
    # `kubectl wait` fails before the object has conditions. The accepted names are written with them.
    for condition in ("jsonpath={.status.acceptedNames.kind}=InferenceService", "condition=Established"):
        kubectl("wait", f"--for={condition}", "crd/inferenceservices.serving.kvasir.dev", "--timeout=60s")


def _usage(running: Cluster) -> str:
    lines = [
        "Kvasir is installed. To use it:",
        f"  {exports(running)}",
        "  kubectl apply -f manifests/examples/demo.yaml",
        "  kubectl wait --for=condition=Ready kvs/demo --timeout=5m",
        "  kubectl port-forward service/demo 8000:80 &",
        f"  {ROOT}/.venv/bin/kvasir chat http://127.0.0.1:8000",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
