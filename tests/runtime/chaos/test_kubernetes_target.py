import json
import shlex
from pathlib import Path

import pytest

from kvasir.chaos.disturbances import DisturbanceKind
from kvasir.chaos.kubernetes_target import KubernetesTarget
from kvasir.config.options import CommandFailed

SELECTOR = "app.kubernetes.io/name=kvasir,app.kubernetes.io/instance=demo,app.kubernetes.io/component=engine"


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a kubectl into PATH that answers with `answer`, and return the file with its arguments."""
    script = tmp_path / "kubectl"
    script.write_text(
        f'#!/bin/sh\necho "$@" >> {shlex.quote(str(tmp_path / "calls"))}\ncat {tmp_path / "answer"}\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return tmp_path / "calls"


def made(calls: Path) -> str:
    return calls.read_text()


def answer(calls: Path, *pods: dict[str, object]) -> None:
    items = [
        {"metadata": {**pod, "labels": {"apps.kubernetes.io/pod-index": str(rank)}}}
        for rank, pod in enumerate(pods)
    ]
    calls.with_name("answer").write_text(json.dumps({"items": items[::-1]}))


async def test_engines_are_the_pods_that_are_not_being_deleted(calls: Path) -> None:
    answer(calls, {}, {"deletionTimestamp": "now"}, *[{}] * 9)
    target = KubernetesTarget("models", "demo")
    assert await target.engines() == ["0", "2", "3", "4", "5", "6", "7", "8", "9", "10"]
    assert made(calls) == f"--namespace models get pods --selector {SELECTOR} --output json\n"


@pytest.mark.parametrize(
    ("kind", "options"), [(DisturbanceKind.KILL, " --force --grace-period=0"), (DisturbanceKind.DRAIN, "")]
)
async def test_disturbance_deletes_the_pod_of_its_rank(calls: Path, kind: DisturbanceKind, options: str) -> None:
    answer(calls)
    await KubernetesTarget("models", "demo").disturb(kind, "3")
    pod = f"{SELECTOR},apps.kubernetes.io/pod-index=3"
    assert made(calls) == f"--namespace models delete pods --selector {pod} --wait=false{options}\n"


async def test_service_whose_pods_are_all_replaced_at_once_is_not_gone(calls: Path) -> None:
    answer(calls, {"deletionTimestamp": "now"})
    assert await KubernetesTarget("models", "demo").engines() == []
    assert made(calls).endswith("--namespace models get inferenceservices.serving.kvasir.dev demo\n")


async def test_missing_services_and_errors_of_kubectl_are_reported(calls: Path) -> None:
    missing = 'Error from server (NotFound): inferenceservices "demo" not found'
    script = f"""case "$*" in *"get pods"*) echo '{{"items": []}}';; *) echo '{missing}' >&2; exit 1;; esac"""
    calls.with_name("kubectl").write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(CommandFailed, match=r'kubectl get: .*inferenceservices "demo" not found'):
        await KubernetesTarget("models", "demo").engines()
    calls.with_name("kubectl").write_text("#!/bin/sh\necho no cluster >&2\nexit 1\n")
    with pytest.raises(CommandFailed, match="kubectl get: no cluster"):
        await KubernetesTarget("models", "demo").engines()
