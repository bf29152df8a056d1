"""Everything that a service is made of: the objects besides the two workloads, ownership, labels, keys."""

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvasir.link import keys as runtime_keys
from kvasir.local.schema import Schema
from kvasir_operator.kinds import CHILDREN, kind_of
from kvasir_operator.link_keys import new_link_keys
from kvasir_operator.resources.children import LINK_KEYS_ANNOTATION, children, children_selector
from kvasir_operator.resources.pod import Images
from kvasir_operator.resources.security import KEY_FILES, link_digest, link_keys_of, link_secret
from kvasir_operator.spec import InferenceService, parse_service

GOLDEN = Path(__file__).parent / "golden" / "demo" / "children.yaml"
DEMO = Path(__file__).parents[2] / "manifests" / "examples" / "demo.yaml"
IMAGES = Images(frontend="kvasir-frontend:test", engine="kvasir-engine:test")
KEYS = {name: name.replace(".", "-") for name in KEY_FILES}
UID = "5e7f4e2c-0000-0000-0000-000000000000"


def service(name: str = "demo") -> InferenceService:
    manifest = yaml.safe_load(DEMO.read_text())
    completed, problems = Schema.of_crd().complete({**manifest, "metadata": {"name": name, "uid": UID}})
    assert not problems
    return parse_service(completed)


def by_name(objects: list[dict[str, Any]]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(entry["kind"], entry["metadata"]["name"]): entry for entry in objects}


def test_objects_are_those_of_the_golden_file() -> None:
    """Without the workloads, which have golden files of their own."""
    rendered = [entry for entry in children(service(), IMAGES, KEYS) if "template" not in entry.get("spec", {})]
    if os.environ.get("KVASIR_UPDATE_GOLDEN"):
        GOLDEN.write_text(yaml.safe_dump_all(rendered, sort_keys=False, width=116))
    assert rendered == list(yaml.safe_load_all(GOLDEN.read_text()))


def test_every_object_is_owned_and_found_by_its_labels() -> None:
    wanted = dict(pair.split("=") for pair in children_selector("demo").split(","))
    for child in children(service(), IMAGES, KEYS):
        (owner,) = child["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (UID, True)
        assert wanted.items() <= child["metadata"]["labels"].items()
        assert kind_of(child) in CHILDREN


def test_what_pods_need_is_applied_before_them() -> None:
    kinds = [child["kind"] for child in children(service(), IMAGES, KEYS)]
    assert kinds.index("ServiceAccount") < kinds.index("Deployment")
    assert kinds.index("Secret") < kinds.index("Deployment")


def test_names_of_the_longest_service_are_names_of_services() -> None:
    for child in children(service("a" * 45), IMAGES, KEYS):
        assert len(child["metadata"]["name"]) <= 63


def test_services_select_the_pods_they_are_about() -> None:
    objects = by_name(children(service(), IMAGES, KEYS))
    for name, workload in (
        ("demo", ("Deployment", "demo-frontend")),
        ("demo-frontend", ("Deployment", "demo-frontend")),
        ("demo-engine", ("StatefulSet", "demo-engine")),
    ):
        template = objects[workload]["spec"]["template"]
        spec = objects["Service", name]["spec"]
        assert spec["selector"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"]: port["containerPort"] for port in template["spec"]["containers"][0]["ports"]}
        for port in spec["ports"]:
            target = port.get("targetPort", port["port"])
            assert target in ports or target in ports.values()


def test_engines_find_the_frontends_where_their_template_says() -> None:
    objects = by_name(children(service(), IMAGES, KEYS))
    environment = objects["StatefulSet", "demo-engine"]["spec"]["template"]["spec"]["containers"][0]["env"]
    link = next(variable["value"] for variable in environment if variable["name"] == "KVASIR_LINK")
    (port,) = [port for port in objects["Service", "demo-frontend"]["spec"]["ports"] if port["name"] == "link"]
    assert link == f"tcp://demo-frontend:{port['port']}"
    assert objects["Service", "demo-frontend"]["spec"]["publishNotReadyAddresses"] is True


def test_new_keys_change_both_templates_and_nothing_of_the_keys_is_in_them() -> None:
    def annotations(keys: dict[str, str]) -> list[str]:
        workloads = [entry for entry in children(service(), IMAGES, keys) if "template" in entry.get("spec", {})]
        return [entry["spec"]["template"]["metadata"]["annotations"][LINK_KEYS_ANNOTATION] for entry in workloads]

    first, second = new_link_keys(), new_link_keys()
    assert annotations(first) == annotations(first)
    assert annotations(first) != annotations(second)
    workloads = [entry for entry in children(service(), IMAGES, first) if entry["kind"] != "Secret"]
    assert not any(key in yaml.safe_dump(workloads) for key in first.values())


def test_a_taken_secret_is_left_out_and_leaves_no_annotation() -> None:
    objects = by_name(children(service(), IMAGES, None))
    assert ("Secret", "demo-link") not in objects
    assert "annotations" not in objects["StatefulSet", "demo-engine"]["spec"]["template"]["metadata"]


def test_keys_survive_the_way_through_the_secret() -> None:
    keys = new_link_keys()
    assert link_keys_of(link_secret(service(), keys)) == keys


@pytest.mark.parametrize("missing", KEY_FILES)
def test_a_secret_without_one_of_its_keys_holds_none(missing: str) -> None:
    secret = link_secret(service(), new_link_keys())
    del secret["data"][missing]
    assert link_keys_of(secret) is None


def test_the_digest_tells_any_other_keys() -> None:
    keys = new_link_keys()
    for name in KEY_FILES:
        assert link_digest({**keys, name: "x"}) != link_digest(keys)


def test_the_processes_look_for_the_names_that_the_operator_writes(tmp_path: Path) -> None:
    assert set(runtime_keys.FRONTEND_FILES) | set(runtime_keys.ENGINE_FILES) == set(KEY_FILES)
    for name, key in new_link_keys().items():
        (tmp_path / name).write_text(key)
    frontend = runtime_keys.load_frontend_keys(str(tmp_path))
    engine = runtime_keys.load_engine_keys(str(tmp_path))
    assert (frontend.peer_public, engine.peer_public) == (engine.public, frontend.public)
