import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvasir.config.options import ConfigError
from kvasir.config.variables import refuse_unmanaged_variables
from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir.local.place import Place, open_place
from kvasir.local.pods import NOT_HERE, Secrets, probes_of, service_processes, without_effect
from kvasir.local.process_specs import ENGINE_PROBES, FRONTEND_PROBES
from kvasir.local.supervision.process_spec import ProcessSpec
from kvasir_operator.resources.engine_stateful_set import engine_template
from kvasir_operator.resources.frontend_deployment import frontend_template
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService, parse_service

RELEASE = Release(frontend_image="", engine_image="", version="")

SCHEMA = CRDSchema.of_crd()


def service(**spec: Any) -> InferenceService:
    spec = {"model": {"source": "demo://"}, **spec}
    completed, problems = SCHEMA.complete({"metadata": {"name": "demo"}, "spec": spec})
    assert not problems
    return parse_service(completed)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    opened = open_place("demo", host="127.0.0.1", port=0, frontends=1, engines=2)
    yield opened
    opened.close()


def processes(place: Place, secrets: Secrets | None = None, **spec: Any) -> dict[str, ProcessSpec]:
    engine = {"dataParallelSize": 2, "resourceName": "", **spec.pop("engine", {})}
    return {p.name: p for p in service_processes(service(engine=engine, **spec), secrets or {}, place)}


def test_commands_are_those_of_the_pods(place: Place) -> None:
    specs = processes(place)
    demo = service(engine={"dataParallelSize": 2, "resourceName": ""})
    assert list(specs) == ["frontend-0", "engine-0", "engine-1"]
    for spec, template in (
        (specs["engine-1"], engine_template(demo, RELEASE, "")),
        (specs["frontend-0"], frontend_template(demo, RELEASE, "")),
    ):
        container = template["spec"]["containers"][0]
        assert spec.argv[0] == sys.executable
        assert spec.argv[-len(container["args"]) :] == tuple(container["args"])
        assert spec.grace == template["spec"]["terminationGracePeriodSeconds"]


def test_every_variable_of_the_place_is_replaced_or_left_out(place: Place) -> None:
    frontend = {"apiKeys": {"name": "keys"}, "adminApiKeys": {"name": "admin-keys"}}
    specs = processes(place, {"keys": {"a": "b"}, "admin-keys": {"a": "c"}}, frontend=frontend)
    demo = service(engine={"resourceName": ""}, frontend=frontend)
    for spec, template in (
        (specs["engine-0"], engine_template(demo, RELEASE, "")),
        (specs["frontend-0"], frontend_template(demo, RELEASE, "")),
    ):
        in_pod = {v["name"]: v.get("value", v.get("valueFrom")) for v in template["spec"]["containers"][0]["env"]}
        for name, value in in_pod.items():
            assert spec.env.get(name) != value or (name == "KVASIR_SERVICE_UID" and value), name
            assert (name in spec.env) != (name in NOT_HERE), name
        assert spec.env["HOME"] == os.environ["HOME"]


def test_options_of_this_shell_do_not_reach_the_processes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVASIR_MAX_NUM_SEQS", "3")
    monkeypatch.setenv("HF_HOME", "/models")
    env = processes(place)["engine-0"].env
    assert "KVASIR_MAX_NUM_SEQS" not in env
    assert env["HF_HOME"] == "/models"


def test_probes_have_their_pods_rhythm_and_local_addresses(place: Place) -> None:
    specs = processes(place)
    engine, frontend = specs["engine-1"], specs["frontend-0"]
    assert engine.liveness is not None
    assert engine.liveness.url == f"http://127.0.0.1:{place.engine_ops_ports[1]}/health/live"
    assert (engine.liveness.period, engine.liveness.failures) == (10, 3)
    assert engine.status_url == f"http://127.0.0.1:{place.engine_ops_ports[1]}/status"
    assert frontend.readiness.url == f"http://127.0.0.1:{place.frontend_ops_ports[0]}/health/ready"
    assert frontend.status_url == f"http://127.0.0.1:{place.frontend_ops_ports[0]}/status"


def test_serve_asks_what_pods_are_asked() -> None:
    demo = service()
    assert probes_of(engine_template(demo, RELEASE, "")["spec"]["containers"][0]) == ENGINE_PROBES
    assert probes_of(frontend_template(demo, RELEASE, "")["spec"]["containers"][0]) == FRONTEND_PROBES


def test_the_frontend_inherits_the_listening_socket(place: Place) -> None:
    frontend = processes(place)["frontend-0"]
    assert frontend.pass_fds == (place.listener.fileno(),)
    assert frontend.env["KVASIR_FD"] == str(place.listener.fileno())


def test_frontends_that_share_a_socket_are_probed_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    place = open_place("demo", host="127.0.0.1", port=0, frontends=2, engines=2)
    try:
        specs = processes(place, frontend={"replicas": 2})
        frontends = [specs[f"frontend-{number}"] for number in range(2)]
        for name in ("KVASIR_LINK", "KVASIR_OPS_PORT"):
            assert len({spec.env[name] for spec in frontends}) == 2
        assert len({spec.liveness.url for spec in frontends if spec.liveness is not None}) == 2
    finally:
        place.close()


def test_api_keys_become_files_of_a_private_directory(place: Place) -> None:
    specs = processes(place, {"keys": {"one": "k1", "two": "k2"}}, frontend={"apiKeys": {"name": "keys"}})
    directory = Path(specs["frontend-0"].env["KVASIR_API_KEY_DIR"])
    assert {path.name: path.read_text() for path in directory.iterdir()} == {"one": "k1", "two": "k2"}
    assert directory.is_relative_to(place.directory)
    assert "KVASIR_ADMIN_API_KEY_DIR" not in specs["frontend-0"].env


def test_admin_keys_become_files_of_another_directory(place: Place) -> None:
    frontend = {"apiKeys": {"name": "keys"}, "adminApiKeys": {"name": "admin-keys"}}
    specs = processes(place, {"keys": {"key": "k1"}, "admin-keys": {"key": "k2"}}, frontend=frontend)
    env = specs["frontend-0"].env
    assert (Path(env["KVASIR_API_KEY_DIR"]) / "key").read_text() == "k1"
    assert (Path(env["KVASIR_ADMIN_API_KEY_DIR"]) / "key").read_text() == "k2"
    assert not {"KVASIR_API_KEY_DIR", "KVASIR_ADMIN_API_KEY_DIR"} & set(specs["engine-0"].env)


def test_values_from_secrets_of_the_manifest_are_filled_in(place: Place) -> None:
    pod = {
        "env": [
            {"name": "A", "value": "plain"},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "b"}}},
            {"name": "C", "valueFrom": {"secretKeyRef": {"name": "s", "key": "none", "optional": True}}},
        ],
        "envFrom": [{"prefix": "P_", "secretRef": {"name": "s"}}, {"secretRef": {"name": "no", "optional": True}}],
    }
    model = {"source": "hf://a/b", "tokenSecret": {"name": "hf"}}
    env = processes(place, {"s": {"b": "B!"}, "hf": {"token": "T"}}, engine={"pod": pod}, model=model)[
        "engine-0"
    ].env
    assert {name: env.get(name) for name in ("A", "B", "C", "P_b", "HF_TOKEN")} == {
        "A": "plain",
        "B": "B!",
        "C": None,
        "P_b": "B!",
        "HF_TOKEN": "T",
    }


def test_a_frontend_without_init_container_has_the_token(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)  # other tests set it
    model = {"source": "hf://a/b", "tokenSecret": {"name": "hf"}}
    env = processes(place, {"hf": {"token": "T"}}, model=model)["frontend-0"].env
    assert (env["HF_TOKEN"], env.get("HF_HUB_OFFLINE")) == ("T", None)


def test_settings_from_secrets_are_refused_as_in_a_pod(place: Place) -> None:
    for spec in processes(place).values():
        refuse_unmanaged_variables(spec.env)
    pod = {"envFrom": [{"secretRef": {"name": "s"}}]}
    spec = processes(place, {"s": {"KVASIR_DTYPE": "float16"}}, engine={"pod": pod})["engine-0"]
    with pytest.raises(ConfigError, match=r"^KVASIR_DTYPE: in a pod"):
        refuse_unmanaged_variables(spec.env)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"frontend": {"apiKeys": {"name": "keys"}}}, "Secret keys, which spec.frontend.apiKeys names, is not in"),
        ({"frontend": {"adminApiKeys": {"name": "keys"}}}, "Secret keys, which spec.frontend.adminApiKeys names"),
        (
            {"model": {"source": "hf://a/b", "tokenSecret": {"name": "hf"}}},
            "Secret hf, which the variable HF_TOKEN names, is not in the manifest",
        ),
        (
            {"engine": {"pod": {"env": [{"name": "N", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}}},
            "the variable N takes its value from fieldRef: there is none here",
        ),
        (
            {"engine": {"pod": {"envFrom": [{"configMapRef": {"name": "c"}}]}}},
            "envFrom takes variables from configMapRef",
        ),
    ],
)
def test_what_only_a_cluster_has_is_refused(place: Place, spec: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        processes(place, {}, **spec)


def test_fields_without_effect_here_are_named() -> None:
    given = service(image="x", frontend={"pod": {"nodeSelector": {"a": "b"}, "env": [{"name": "A", "value": "1"}]}})
    assert without_effect(given) == ["spec.image", "spec.frontend.pod.nodeSelector"]
    assert without_effect(service()) == []
    own = service(engine={"image": "x", "pod": {"securityContext": {"runAsUser": 1}}})
    assert without_effect(own) == ["spec.engine.image", "spec.engine.pod.securityContext"]
    assert without_effect(service(engine={"resourceName": "", "tensorParallelSize": 2, "nodes": 2})) == [
        "spec.engine.nodes"
    ]
    to_zero = {"minRanks": 0, "toZeroAfter": "1m"}
    assert without_effect(service(autoscaling=to_zero)) == ["spec.autoscaling.toZeroAfter"]
    by_load = {"minRanks": 1, "maxRanks": 2, "targets": {"ttft": "1s"}}
    assert without_effect(service(autoscaling=by_load)) == ["spec.autoscaling.targets"]


def test_an_engine_of_several_pods_is_one_process_here(place: Place) -> None:
    in_pods = processes(place, engine={"resourceName": "", "tensorParallelSize": 4, "nodes": 2})["engine-1"]
    alone = processes(place, engine={"resourceName": "", "tensorParallelSize": 4})["engine-1"]
    assert (in_pods.argv, in_pods.env) == (alone.argv, alone.env)
    assert in_pods.env["KVASIR_DATA_PARALLEL_RANK"] == "1"


def test_an_exposed_service_has_no_other_path_here(place: Place) -> None:
    exposed = processes(place, expose={"host": "llm.example.com", "path": "/qwen"})["frontend-0"]
    assert exposed.argv == processes(place)["frontend-0"].argv


def test_adapters_become_a_file_of_a_private_directory(place: Place) -> None:
    adapter = {"name": "sql", "source": "file:///adapters/sql"}
    specs = processes(place, model={"source": "demo://", "loraAdapters": [adapter]})
    file = Path(specs["frontend-0"].env["KVASIR_LORA_MODULES_FILE"])
    assert file.is_relative_to(place.directory)
    assert json.loads(file.read_text()) == [adapter]
    assert "--enable-lora" in specs["engine-0"].argv
    assert "KVASIR_LORA_MODULES_FILE" not in specs["engine-0"].env
