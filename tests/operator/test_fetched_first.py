import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_contract.failure import find_failure
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_operator.observe.objects import pod_of
from kvasir_operator.observe.observed import PodState
from kvasir_operator.observe.pod_state import pod_state
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service
from pod_facts import CRASHED, RUNNING, SCHEDULED, ended, pod
from runtime.hub import fake_hub

SCHEMA = CRDSchema.of_crd()
RELEASE = Release(frontend_image="frontend:1", engine_image="engine:1", version="1.0.0")
TOKEN = {"name": "hf", "key": "token"}
DEMO = Path(__file__).parents[2] / "runtime" / "kvasir" / "hub" / "demo"


def service(token: dict[str, str] | None = TOKEN, **spec: Any) -> InferenceService:
    model = {"source": "hf://org/name", **({"tokenSecret": token} if token else {})}
    document = {"metadata": {"name": "demo", "uid": "1"}, "spec": {"model": model, **spec}}
    completed, problems = SCHEMA.complete(document)
    assert not problems
    return parse_service(completed)


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def test_only_the_container_that_fetches_has_the_token() -> None:
    spec = frontend_template(service(), RELEASE, "link")["spec"]
    (fetch,), (serving,) = spec["initContainers"], spec["containers"]
    assert variables(fetch)["HF_TOKEN"] == {"secretKeyRef": TOKEN}
    assert "HF_TOKEN" not in variables(serving)
    assert variables(serving)["HF_HUB_OFFLINE"] == "1"
    assert fetch["args"] == [*serving["args"], "--fetch-only"]
    same = ("image", "command", "securityContext", "resources")
    assert [fetch.get(name) for name in same] == [serving.get(name) for name in same]
    assert [mount["mountPath"] for mount in fetch["volumeMounts"]] == ["/tmp", "/var/cache/kvasir"]
    engine = engine_template(service(), RELEASE, "link")["spec"]
    assert "initContainers" not in engine
    assert "HF_TOKEN" in variables(engine["containers"][0])


def test_a_frontend_without_a_token_fetches_by_itself() -> None:
    spec = frontend_template(service(token=None), RELEASE, "link")["spec"]
    assert "initContainers" not in spec
    assert "HF_HUB_OFFLINE" not in variables(spec["containers"][0])


def test_both_containers_have_the_users_settings() -> None:
    given = {
        "env": [{"name": "HF_HOME", "value": "/data"}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "resources": {"limits": {"memory": "1Gi"}},
    }
    spec = frontend_template(service(frontend={"pod": given, "image": "mine"}), RELEASE, "link")["spec"]
    for container in (*spec["initContainers"], *spec["containers"]):
        assert variables(container)["HF_HOME"] == "/data"
        assert container["volumeMounts"][-1]["mountPath"] == "/data"
        assert container["resources"]["limits"] == {"memory": "1Gi"}
        assert container["image"] == "mine"


INITIALIZING = {"state": {"waiting": {"reason": "PodInitializing"}}}
BACKOFF = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": CRASHED, "restartCount": 3}


def state(fetch: dict[str, Any], serving: dict[str, Any] = INITIALIZING) -> PodState:
    resource = pod({"conditions": [SCHEDULED, {"type": "Ready", "status": "False"}]})
    resource["spec"]["initContainers"] = [{"name": "fetch", "image": "kvasir:1"}]
    resource["status"]["initContainerStatuses"] = [{"name": "fetch", **fetch}]
    resource["status"]["containerStatuses"] = [{"name": "engine", **serving}]
    return pod_state(pod_of(resource))


@pytest.mark.parametrize(
    ("fetch", "phase", "reason", "words"),
    [
        (INITIALIZING, Phase.PULLING, Reason.LOADING, ""),
        ({"state": {"running": {}}}, Phase.STARTING, Reason.LOADING, "config and tokenizer are being fetched"),
        ({"state": CRASHED}, Phase.FAILED, Reason.MODEL_NOT_FOUND, "/x does not exist"),
        (BACKOFF, Phase.FAILED, Reason.MODEL_NOT_FOUND, "/x does not exist"),
        (
            {"state": {"running": {}}, "lastState": CRASHED, "restartCount": 2},
            Phase.STARTING,
            Reason.MODEL_NOT_FOUND,
            "/x does not exist (restarted 2 times)",
        ),
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "hf" not found'}}},
            Phase.STARTING,
            Reason.INVALID_SPEC,
            'secret "hf" not found: create it',
        ),
        ({"state": ended(137, "", "OOMKilled")}, Phase.FAILED, Reason.OUT_OF_MEMORY, "exceeded its memory limit"),
    ],
)
def test_the_state_of_a_pod_is_that_of_its_fetch(
    fetch: dict[str, Any], phase: Phase, reason: Reason, words: str
) -> None:
    found = state(fetch)
    assert (found.phase, found.reason) == (phase, reason)
    assert words in found.message
    assert found.restarts == fetch.get("restartCount", 0)


@pytest.mark.parametrize("done", [{"ready": True}, {}])
def test_a_fetch_that_succeeded_after_a_failure_is_over(done: dict[str, Any]) -> None:
    fetched = {"state": ended(0, "", "Completed"), "lastState": CRASHED, "restartCount": 1, **done}
    assert state(fetched).reason is Reason.LOADING
    assert state(fetched, {"state": CRASHED}).reason is Reason.MODEL_NOT_FOUND
    assert state(fetched, RUNNING["status"]["containerStatuses"][0]).phase is Phase.STARTING


def run(command: list[str], home: Path, hub: str, **extra: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "KVASIR_"))}
    env = kept | {"HOME": str(home), "HF_ENDPOINT": hub} | extra
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)


def test_a_server_without_token_reads_what_was_fetched(tmp_path: Path) -> None:
    read = (
        "from kvasir.config.settings import ModelConfig; from kvasir.hub.located_model import read_model; "
        "print(read_model(ModelConfig(source='hf://org/name')).path)"
    )
    command = [sys.executable, "-m", "kvasir.cli.main", "frontend", "hf://org/name", "--link=tcp://*:5570"]
    fetch = [*command, "--fetch-only"]
    with fake_hub.running() as hub:
        hub.models["org/name"] = {path.name: path.read_bytes() for path in DEMO.iterdir() if path.is_file()}
        hub.gated.add("org/name")
        refused = run(fetch, tmp_path, hub.url)
        failure = find_failure(refused.stderr)
        assert refused.returncode == 2, refused.stderr
        assert failure is not None
        assert failure.reason is Reason.MODEL_NOT_FOUND
        fetched = run(fetch, tmp_path, hub.url, HF_TOKEN=fake_hub.TOKEN)
        assert fetched.returncode == 0, fetched.stderr
        asked = len(hub.requested)
        served = run([sys.executable, "-c", read], tmp_path, hub.url, HF_HUB_OFFLINE="1")
        assert str(tmp_path) in served.stdout, served.stderr
        assert len(hub.requested) == asked
