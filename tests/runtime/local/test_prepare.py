from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from kvasir.config.options import ConfigError
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir.local.manifests.manifest import Manifest
from kvasir.local.prepare import gpus_of, has_template, prepare_services
from kvasir_operator.spec import InferenceService, parse_service

SCHEMA = CRDSchema.of_crd()


def service(name: str, **engine: Any) -> InferenceService:
    spec = {"model": {"source": "demo://"}, "engine": engine}
    completed, problems = SCHEMA.complete({"metadata": {"name": name}, "spec": spec})
    assert not problems
    return parse_service(completed)


def test_each_service_has_gpus_of_its_own() -> None:
    services = [service("a", dataParallelSize=2), service("cpu", resourceName=""), service("b")]
    assert gpus_of(services, ["0", "GPU-1", "5", "7"]) == {"a": ["0", "GPU-1"], "cpu": [], "b": ["5"]}


def test_each_worker_has_a_gpu_of_its_own() -> None:
    services = [service("a", dataParallelSize=2, tensorParallelSize=2), service("b")]
    assert gpus_of(services, list("01234")) == {"a": list("0123"), "b": ["4"]}
    with pytest.raises(ConfigError, match=r"there are 4 GPUs here, and 5 workers need one each"):
        gpus_of(services, list("0123"))


def test_services_on_cpu_need_no_gpu() -> None:
    assert gpus_of([service("a", resourceName=""), service("b", resourceName="")], []) == {"a": [], "b": []}


@pytest.mark.parametrize(("gpus", "have"), [([], "there is no GPU here"), (["0", "1"], "there are 2 GPUs here")])
def test_too_few_gpus_for_all_services_are_refused(gpus: list[str], have: str) -> None:
    services = [service("a", dataParallelSize=2), service("cpu", resourceName=""), service("b")]
    message = rf"^InferenceServices on GPUs \(a 2, b 1\): {have}, and 3 engines need one each: set spec\.engine"
    with pytest.raises(ConfigError, match=message):
        gpus_of(services, gpus)


def test_other_devices_than_nvidias_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^InferenceService a: spec\.engine\.resourceName amd\.com/gpu: without"):
        gpus_of([service("a", resourceName="amd.com/gpu")], ["0"])


@pytest.mark.parametrize(
    ("given", "replaced"),
    [
        ([], False),
        (["--log-level=debug"], False),
        (["--chat-template=x.jinja"], True),
        (["--chat_template=x"], True),
    ],
)
def test_a_template_of_the_manifest_is_seen(given: list[str], replaced: bool) -> None:
    """It may not know the tools that the demo model was taught, so that no line shows one."""
    spec = {"model": {"source": "demo://"}, "frontend": {"extraArgs": given}}
    completed, problems = SCHEMA.complete({"metadata": {"name": "a"}, "spec": spec})
    assert not problems
    assert has_template(parse_service(completed)) == replaced


@pytest.mark.parametrize(
    ("engine", "arguments", "message"),
    [
        ({"tensorParallelSize": 3}, (), "a: --tensor-parallel-size 3 does not divide"),
        ({}, ("--port", "9", "--reasoning-parser", "foo"), "a: --reasoning-parser foo: no reasoning format"),
        ({}, ("--max-logprobs", "4", "--chat-template=/no/such"), "a: --chat-template /no/such: No such file"),
        ({}, ("--tool-call-parser",), "a: spec.frontend.extraArgs: argument --tool-call-parser: expected one"),
    ],
)
def test_wrong_settings_of_a_manifest_are_found_early(
    engine: dict[str, Any], arguments: tuple[str, ...], message: str
) -> None:
    given = service("a", resourceName="", **engine)
    given = replace(given, frontend=replace(given.frontend, extra_args=arguments))
    with ExitStack() as stack, pytest.raises(ConfigError, match=f"^InferenceService {message}"):
        prepare_services(stack, Manifest([given]), "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"kvCache": {"memory": "900Ti"}}, "a: the KV cache needs 921600.00 GiB"),
        ({"maxModelLen": 999999}, "a: --max-model-len 999999 is more than the model's own"),
        ({"extraArgs": ["--kv-cache-dtype=fp8"]}, "a: --kv-cache-dtype fp8 needs an NVIDIA GPU"),
        ({"extraArgs": ["--slow-step", "1s", "--load-format=x"]}, "a: spec.engine.extraArgs: argument --load"),
    ],
)
def test_wrong_settings_of_engines_are_found_early(engine: dict[str, Any], message: str) -> None:
    with ExitStack() as stack, pytest.raises(ConfigError, match=f"^InferenceService {message}"):
        prepare_services(stack, Manifest([service("a", resourceName="", **engine)]), "127.0.0.1", 0)
