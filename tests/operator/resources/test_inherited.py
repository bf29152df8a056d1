"""What all objects of a service get from its metadata and from the installation."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from kvasir.local.manifests.crd_schema import CRDSchema
from kvasir_operator.link_keys import new_link_keys
from kvasir_operator.resources.children import children
from kvasir_operator.resources.engine_stateful_set import engine_stateful_set
from kvasir_operator.resources.pinning import pin
from kvasir_operator.resources.release import Release
from kvasir_operator.resources.security import link_secret
from kvasir_operator.spec import InferenceService

DEMO = Path(__file__).parents[3] / "manifests" / "examples" / "demo.yaml"
SCHEMA = CRDSchema.of_crd()
LINK_SECRET = "demo-link-b2c4d6f789"
INHERITING = Release(
    frontend_image="frontend:1",
    engine_image="engine:1",
    version="1.2.3",
    inherited_labels=("team", "kueue.x-k8s.io/", "app.kubernetes.io/"),
    inherited_annotations=("cost",),
)


def inheriting(**metadata: Any) -> InferenceService:
    manifest = yaml.safe_load(DEMO.read_text())
    completed, problems = SCHEMA.complete({**manifest, "metadata": {"name": "demo", "uid": "5e7f4e2c", **metadata}})
    assert not problems
    return INHERITING.parse(completed)


def test_objects_inherit_the_listed_labels_and_annotations() -> None:
    labels = {"team": "a", "kueue.x-k8s.io/queue-name": "gpus", "app.kubernetes.io/name": "mine", "other": "x"}
    found = inheriting(labels=labels, annotations={"cost": "7", "note": "no"})
    objects = [*children(found, INHERITING, LINK_SECRET), link_secret(found, LINK_SECRET, new_link_keys())]
    pods = [each["spec"]["template"] for each in objects if "template" in each.get("spec", {})]
    assert len(pods) == 2
    for each in (*objects, *pods):
        metadata = each["metadata"]
        assert (metadata["labels"]["team"], metadata["labels"]["kueue.x-k8s.io/queue-name"]) == ("a", "gpus")
        assert metadata["annotations"]["cost"] == "7"
        assert metadata["labels"]["app.kubernetes.io/name"] == "kvasir"
        assert "other" not in metadata["labels"]
        assert "note" not in metadata["annotations"]


def test_labels_that_are_not_inherited_change_nothing() -> None:
    plain, labelled = inheriting(), inheriting(labels={"other": "x"}, annotations={"note": "no"})
    assert children(plain, INHERITING, LINK_SECRET) == children(labelled, INHERITING, LINK_SECRET)


def test_pods_pull_with_their_own_secrets_and_those_of_all() -> None:
    release = replace(INHERITING, image_pull_secrets=("all", "own"))
    manifest = {**yaml.safe_load(DEMO.read_text()), "metadata": {"name": "demo", "uid": "5e7f4e2c"}}
    manifest["spec"]["imagePullSecrets"] = [{"name": "own"}]
    completed, _ = SCHEMA.complete(manifest)
    found = children(release.parse(completed), release, LINK_SECRET)
    secrets = [
        each["spec"]["template"]["spec"]["imagePullSecrets"] for each in found if "template" in each.get("spec", {})
    ]
    assert secrets == [[{"name": "own"}, {"name": "all"}]] * 2
    assert release.id != INHERITING.id  # services that wait for the secret can upgrade


def test_a_pull_secret_of_the_operator_replaces_no_pods() -> None:
    release = replace(INHERITING, image_pull_secrets=("all",))
    manifest = {**yaml.safe_load(DEMO.read_text()), "metadata": {"name": "demo", "uid": "5e7f4e2c"}}
    completed, _ = SCHEMA.complete(manifest)
    before = engine_stateful_set(INHERITING.parse(completed), INHERITING, LINK_SECRET)
    after = engine_stateful_set(release.parse(completed), release, LINK_SECRET)
    assert pin(after, before)["spec"] == before["spec"] != after["spec"]
