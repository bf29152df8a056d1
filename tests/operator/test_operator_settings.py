"""The operator's options and their environment variables."""

import pytest

from kvasir_operator.settings import parse_settings

IMAGES = {"KVASIR_FRONTEND_IMAGE": "f:1", "KVASIR_ENGINE_IMAGE": "e:1"}


def test_the_environment_is_the_default_of_each_option() -> None:
    environment = {**IMAGES, "KVASIR_NAMESPACES": "a, b", "KVASIR_PORT": "9", "POD_NAME": "p", "POD_NAMESPACE": "n"}
    settings = parse_settings(["--engine-image", "mine"], environment)
    assert (settings.release.frontend_image, settings.release.engine_image) == ("f:1", "mine")
    assert settings.namespaces == ("a", "b")
    assert (settings.port, settings.identity, settings.lease_namespace) == (9, "p", "n")
    assert (settings.lease_duration, settings.resync) == (15, 600)


def test_without_namespaces_all_are_watched() -> None:
    assert parse_settings([], {**IMAGES, "KVASIR_NAMESPACES": ""}).namespaces == ()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port", "http"], "'http' is not a port"),
        (["--resync", "often"], "'often' is not a duration"),
        (["--lease-duration", "10ms"], "at least 1s"),
        (["--workers", "0"], "'0' is not a number from 1 on"),
        (["--log-level", "loud"], "invalid choice"),
        (["--engine-image", ""], "KVASIR_ENGINE_IMAGE) is missing"),
    ],
)
def test_what_cannot_be_used_is_refused_in_words(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        parse_settings(arguments, IMAGES)
    assert end.value.code == 2
    assert words in capsys.readouterr().err


def test_a_variable_is_checked_like_its_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_settings([], {**IMAGES, "KVASIR_PORT": "many"})
    assert "--port: 'many' is not a port" in capsys.readouterr().err
