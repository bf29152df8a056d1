"""The operator's options and their environment variables."""

from pathlib import Path

import pytest

from kvasir_operator.operator_settings import parse_preview, parse_settings

IMAGES = {"KVASIR_FRONTEND_IMAGE": "f:1", "KVASIR_ENGINE_IMAGE": "e:1"}


def test_the_environment_is_the_default_of_each_option() -> None:
    environment = {**IMAGES, "KVASIR_NAMESPACES": "a, b", "KVASIR_PORT": "9", "POD_NAME": "p", "POD_NAMESPACE": "n"}
    settings = parse_settings(["--engine-image", "mine"], environment)
    assert (settings.release.frontend_image, settings.release.engine_image) == ("f:1", "mine")
    assert settings.namespaces == ("a", "b")
    assert (settings.port, settings.identity, settings.lease_namespace) == (9, "p", "n")
    assert (settings.lease_duration, settings.resync) == (15, 600)


def test_namespaces_of_the_monitoring_are_a_list() -> None:
    settings = parse_settings([], {**IMAGES, "KVASIR_MONITORING_NAMESPACES": "monitoring, other"})
    assert settings.release.monitoring_namespaces == ("monitoring", "other")


def test_keys_that_objects_inherit_are_lists() -> None:
    settings = parse_settings(["--inherit-labels", "team, kueue.x-k8s.io/"], {**IMAGES})
    assert settings.release.inherited_labels == ("team", "kueue.x-k8s.io/")
    assert settings.release.inherited_annotations == ()


def test_without_namespaces_all_are_watched() -> None:
    assert parse_settings([], {**IMAGES, "KVASIR_NAMESPACES": ""}).namespaces == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "http"], "'http' is not a valid port"),
        (["--resync", "often"], "'often' is not a duration"),
        (["--lease-duration", "10ms"], "at least 1s"),
        (["--workers", "0"], "'0' is not a valid count"),
        (["--log-level", "loud"], "invalid choice"),
        (["--inherit-labels", "team,*"], "'*' is not a valid key"),
        (["--inherit-annotations", "serving.kvasir.dev/"], "because Kvasir sets it"),
        (["--engine-image", ""], "KVASIR_ENGINE_IMAGE) is required"),
    ],
)
def test_invalid_options_are_rejected_with_a_message(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse_settings(arguments, IMAGES)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_a_variable_is_checked_like_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([], {**IMAGES, "KVASIR_PORT": "many"})
    assert "--port: 'many' is not a valid port" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", "gpu", "a", "team-2", "a" * 63])
def test_the_class_is_an_option_and_a_variable(name: str) -> None:
    assert parse_settings(["--operator-class", name], IMAGES).operator_class == name
    assert parse_settings([], {**IMAGES, "KVASIR_OPERATOR_CLASS": name}).operator_class == name


@pytest.mark.parametrize("name", ["GPU", "a b", "-a", "a-", "a_b", "ä", "a\n", "a" * 64])
def test_a_class_that_is_not_a_name_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_settings([f"--operator-class={name}"], IMAGES)
    assert end.value.code == 2
    assert "is not a valid class: use lower-case letters, digits and '-'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "most"),
    [
        ([], 0),
        (["--max-upgrades", "5"], 0),  # manual: each service requests its upgrade
        (["--upgrade", "automatic"], 1),
        (["--upgrade", "automatic", "--max-upgrades", "5"], 5),
    ],
)
def test_upgrades_are_manual_unless_set_to_automatic(arguments: list[str], most: int) -> None:
    assert parse_settings(arguments, IMAGES).max_upgrades == most


@pytest.mark.parametrize(
    "arguments", [["--upgrade", "sometimes"], ["--max-upgrades", "0"], ["--max-upgrades", "-1"]]
)
def test_an_upgrade_setting_that_cannot_be_used_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_settings(arguments, IMAGES)
    assert end.value.code == 2


def test_the_taints_of_a_drain_are_a_setting() -> None:
    assert "karpenter.sh/disrupted" in parse_settings([], IMAGES).drain_taints
    assert parse_settings(["--drain-taints", "a/b, c"], IMAGES).drain_taints == ("a/b", "c")
    assert parse_settings([], {**IMAGES, "KVASIR_DRAIN_TAINTS": ""}).drain_taints == ()


def test_upgrade_settings_have_variables() -> None:
    environment = {**IMAGES, "KVASIR_UPGRADE": "automatic", "KVASIR_MAX_UPGRADES": "3"}
    assert parse_settings([], environment).max_upgrades == 3


@pytest.mark.parametrize(("namespaces", "reads_nodes"), [("", True), ("a,b", False)])
def test_a_namespaced_operator_does_not_read_nodes(namespaces: str, reads_nodes: bool) -> None:
    settings = parse_settings(["--namespaces", namespaces], {**IMAGES, "POD_NAMESPACE": "kvasir"})
    assert settings.release.reads_nodes is reads_nodes
    assert settings.release.operator_namespace == "kvasir"


def test_the_preview_takes_a_file_and_the_operators_options() -> None:
    file, offline, settings = parse_preview(["demo.yaml", "--operator-class", "gpu"], IMAGES)
    assert (file, offline, settings.operator_class) == (Path("demo.yaml"), False, "gpu")
    assert settings.release.operator_namespace == "kvasir-system"


def test_the_preview_needs_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse_preview([], IMAGES)
    assert end.value.code == 2
    assert "kvasir-operator plan: error" in capsys.readouterr().err
