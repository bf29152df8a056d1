"""Profiles: their fields, how they merge with a spec, and that a change of one replaces no pod at once."""

import asyncio
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir_operator import operator_process
from kvasir_operator.cluster.kinds import DEPLOYMENT, INFERENCE_SERVICE, STATEFUL_SET
from kvasir_operator.profiles import Profiles
from kvasir_operator.resources.names import RELEASE_ANNOTATION
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService
from kvasir_operator.spec_values import InvalidSpec
from mock_operator import Operator
from operator_facts import RELEASE, SCHEMA

EXAMPLE = Path(__file__).parents[2] / "manifests" / "examples" / "profiles.yaml"
TAINT = {"key": "gpu", "operator": "Exists"}
H100: dict[str, Any] = {
    "engine": {
        "resourceName": "example.com/h100",
        "maxNumSeqs": 512,
        "extraArgs": ["--log-level=debug"],
        "pod": {
            "tolerations": [TAINT],
            "nodeSelector": {"gpu": "h100", "zone": "a"},
            "resources": {"limits": {"memory": "64Gi"}},
            "env": [{"name": "A", "value": "profile"}, {"name": "B", "value": "profile"}],
            "affinity": {"nodeAffinity": {}},
        },
    },
    "frontend": {"pod": {"priorityClassName": "online"}},
}


def release(**profiles: Any) -> Release:
    texts = {name: yaml.safe_dump(profile) for name, profile in profiles.items()}
    return replace(RELEASE, profiles=Profiles(lambda: texts))


def parsed(of: Release, **spec: Any) -> InferenceService:
    document = {
        "metadata": {"name": "demo", "namespace": "default"},
        "spec": {"model": {"source": "demo://"}, **spec},
    }
    completed, problems = SCHEMA.complete(document)
    assert not problems
    return of.parse(completed)


def test_a_profile_sets_what_the_service_does_not() -> None:
    service = parsed(release(h100=H100), profile="h100")
    assert service.engine.resource_name == "example.com/h100"
    assert service.engine.max_num_seqs == 512
    assert service.engine.pod.tolerations == (TAINT,)
    assert service.frontend.pod.priority_class_name == "online"
    assert service.applied is not None
    assert service.applied.paths[:2] == ["engine.extraArgs", "engine.maxNumSeqs"]


def test_fields_of_the_service_win() -> None:
    pod = {
        "nodeSelector": {"zone": "b"},
        "tolerations": [{"key": "mine"}],
        "resources": {"limits": {"memory": "32Gi", "cpu": "4"}},
        "env": [{"name": "B", "value": "own"}],
        "affinity": {"podAffinity": {}},
    }
    engine = {"resourceName": "", "maxNumSeqs": 8, "extraArgs": ["--log-level=info"], "pod": pod}
    found = parsed(release(h100=H100), profile="h100", engine=engine).engine
    assert (found.resource_name, found.max_num_seqs) == ("", 8)
    assert found.extra_args == ("--log-level=debug", "--log-level=info")  # the last one counts
    assert found.pod.node_selector == {"gpu": "h100", "zone": "b"}
    assert found.pod.tolerations == (TAINT, {"key": "mine"})
    assert found.pod.resources == {"limits": {"memory": "32Gi", "cpu": "4"}}
    assert found.pod.env == ({"name": "A", "value": "profile"}, {"name": "B", "value": "own"})
    assert found.pod.affinity == {"podAffinity": {}}


def test_a_mount_at_the_path_of_a_profile_replaces_its_mount() -> None:
    mounts = [{"name": "cache", "mountPath": "/data"}, {"name": "cache", "mountPath": "/more"}]
    of = release(h100={"engine": {"pod": {"volumeMounts": mounts}}})
    own = {"name": "mine", "mountPath": "/data"}
    found = parsed(of, profile="h100", engine={"pod": {"volumeMounts": [own]}}).engine.pod
    assert found.volume_mounts == (mounts[1], own)


def test_services_without_a_profile_have_the_default_one() -> None:
    assert parsed(release(h100=H100)).applied is None
    of = release(default={"engine": {"maxNumSeqs": 4}}, h100=H100)
    assert parsed(of).engine.max_num_seqs == 4
    assert parsed(of, profile="h100").engine.max_num_seqs == 512


def pod_of(**pod: Any) -> dict[str, Any]:
    return {"a100": {"engine": {"pod": pod}}}


@pytest.mark.parametrize(
    ("profiles", "words"),
    [
        ({"h100": H100, "l4": {}}, "there is no profile a100: use one of h100, l4"),
        ({}, "none is known .ConfigMap kvasir-profiles"),
        ({"a100": {"engines": {}}}, "profile a100 of the operator cannot be used: engines is not a field"),
        ({"a100": {"engine": {"pod": {"tolerations": {}}}}}, "engine.pod.tolerations is not a list"),
        ({"a100": {"engine": {"dtype": "float16"}}}, "engine.dtype is not a field of a profile"),
        ({"a100": {"engine": {"maxNumSeqs": True}}}, "engine.maxNumSeqs is not a number"),
        ({"a100": {"engine": []}}, "engine is not a mapping"),
        ({"a100": {"engine": {"resourceName": ""}}}, "is for services only"),
        ({"a100": {"engine": {"extraArgs": [1]}}}, "engine.extraArgs has an entry that is not text"),
        (pod_of(annotations={"built": date(2026, 1, 1)}), "write it in quotes"),
        (pod_of(tolerations=["gpu"]), "engine.pod.tolerations has an entry that is not a mapping"),
        (pod_of(resources={"limits": 4}), "engine.pod.resources has an entry that is not a mapping"),
        (pod_of(securityContext={"capabilities": []}), "engine.pod.securityContext has an entry"),
        (pod_of(env=[{"value": "1"}]), "engine.pod.env has an entry without a name"),
        (pod_of(volumes=[{"name": {}}]), "engine.pod.volumes has an entry without a name"),
        (
            {"a100": {"engine": {"pod": {"resources": {"limits": {"cpu": "x"}}}}}},
            "with the profile a100: spec.engine",
        ),
    ],
)
def test_an_unusable_profile_is_named(profiles: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidSpec, match=words):
        parsed(release(**profiles), profile="a100")


def test_text_that_is_not_yaml_is_one_line() -> None:
    of = replace(RELEASE, profiles=Profiles(lambda: {"a100": "engine: {"}))
    with pytest.raises(InvalidSpec, match="profile a100 of the operator cannot be used") as refusal:
        parsed(of, profile="a100")
    assert "\n" not in str(refusal.value)


def test_profiles_are_files_of_a_mounted_config_map(tmp_path: Path) -> None:
    (tmp_path / "..data").mkdir()
    (tmp_path / "h100.yaml").write_text("engine: {}")
    (tmp_path / "l4").write_text("")
    assert Profiles.of_folder(tmp_path).texts() == {"h100": "engine: {}", "l4": ""}
    assert Profiles.of_folder(tmp_path / "none").texts() == {}
    assert Profiles.of_config_map({"h100.yaml": "x"}).texts() == {"h100": "x"}


async def test_a_changed_profile_waits_until_it_is_requested(settled: Operator) -> None:
    """As a new release of the operator does: no pod is replaced by surprise."""
    settled.restart(release(h100={"engine": {"maxNumSeqs": 16}}))
    settled.cluster.change_service(profile="h100")
    await settled.settle()
    assert sequences(settled) == "16"
    settled.restart(release(h100={"engine": {"maxNumSeqs": 32}}))
    await settled.settle()
    assert sequences(settled) == "16"
    assert settled.cluster.condition("UpgradeAvailable")[0] == "True"
    assert settled.cluster.status()["profile"] == {"name": "h100", "fields": ["engine.maxNumSeqs"]}
    metadata = settled.cluster.of(INFERENCE_SERVICE, "demo")["metadata"]
    message = next(
        each["message"] for each in settled.cluster.status()["conditions"] if each["type"] == "UpgradeAvailable"
    )
    assert "of operator and profile h100" in message
    metadata["annotations"] = {RELEASE_ANNOTATION: message.split(" ")[1]}
    await settled.once()
    assert sequences(settled) == "32"


async def test_a_change_of_the_spec_takes_the_new_profile(settled: Operator) -> None:
    settled.restart(release(h100={"engine": {"maxNumSeqs": 16}}))
    settled.cluster.change_service(profile="h100")
    await settled.settle()
    settled.restart(release(h100={"engine": {"maxNumSeqs": 32}}))
    engine = settled.cluster.of(INFERENCE_SERVICE, "demo")["spec"]["engine"]
    settled.cluster.change_service(engine={**engine, "maxModelLen": 64})
    await settled.once()
    assert sequences(settled) == "32"


async def test_a_new_default_profile_replaces_no_pod(settled: Operator) -> None:
    workloads = (STATEFUL_SET, "demo-engine"), (DEPLOYMENT, "demo-frontend")
    before = [settled.cluster.of(*workload)["spec"]["template"] for workload in workloads]
    settled.restart(release(default={"engine": {"maxNumSeqs": 4}, "frontend": {"pod": {"labels": {"a": "b"}}}}))
    await settled.settle()
    assert [settled.cluster.of(*workload)["spec"]["template"] for workload in workloads] == before
    assert settled.cluster.condition("UpgradeAvailable")[0] == "True"


async def test_an_unknown_profile_changes_nothing(settled: Operator) -> None:
    settled.restart(release(h100=H100))
    settled.cluster.change_service(profile="h200")
    settled.cluster.calls.clear()
    await settled.later()
    assert settled.cluster.condition("Ready") == ("True", "InvalidSpec")
    assert "use one of h100" in settled.cluster.ready_message()
    assert {verb for verb, kind in settled.cluster.calls if kind != "InferenceService"} == set()


def sequences(operator: Operator) -> str:
    template = operator.cluster.of(STATEFUL_SET, "demo-engine")["spec"]["template"]
    args: list[str] = template["spec"]["containers"][0]["args"]
    return args[args.index("--max-num-seqs") + 1]


async def test_a_changed_file_queues_every_service(settled: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_process, "PROFILES_SECONDS", 0.001)
    texts = {"h100": "engine: {}"}
    queued: asyncio.Queue[str] = asyncio.Queue()
    watch = operator_process.check_profiles(
        Profiles(lambda: dict(texts)), settled.reconciler, lambda key: queued.put_nowait(key.name)
    )
    task = asyncio.create_task(watch)
    await asyncio.sleep(0.01)
    assert queued.empty()
    texts["h100"] = "engine: {maxNumSeqs: 8}"
    assert await queued.get() == "demo"
    task.cancel()


def test_the_examples_can_be_used() -> None:
    data = yaml.safe_load(EXAMPLE.read_text())["data"]
    of = replace(RELEASE, profiles=Profiles.of_config_map(data))
    for name in of.profiles.texts():
        applied = parsed(of, profile=name).applied
        assert applied is not None
        assert applied.paths
