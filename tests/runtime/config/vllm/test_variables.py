"""Variables of vLLM: read as options, or named in a warning; what Kubernetes sets for a Service is neither."""

import argparse

import pytest

from kvasir.config.frontend_settings import ServerConfig
from kvasir.config.options import ConfigError, from_args
from kvasir.config.process_settings import ProcessConfig
from kvasir.config.variables import refuse_unmanaged_variables, unknown_variables

NOTHING = argparse.Namespace()


def keys(**environ: str) -> tuple[str, ...]:
    return from_args(ServerConfig, NOTHING, environ).api_key


def test_vllms_api_key_is_required_and_named() -> None:
    assert keys(VLLM_API_KEY="secret") == ("secret",)
    assert unknown_variables({"VLLM_API_KEY": "secret"}) == [
        "VLLM_API_KEY is read as --api-key, unless that is given"
    ]


def test_keys_of_kvasir_come_before_that_of_vllm() -> None:
    assert keys(VLLM_API_KEY="theirs", KVASIR_API_KEY="a,b") == ("a", "b")
    given = argparse.Namespace(api_key=["argument"])
    assert from_args(ServerConfig, given, {"VLLM_API_KEY": "theirs"}).api_key == ("argument",)


def test_a_key_with_a_comma_stays_one_key() -> None:
    assert keys(VLLM_API_KEY="a,b") == ("a,b",)


def test_an_empty_key_does_not_disable_authentication() -> None:
    with pytest.raises(ConfigError, match="VLLM_API_KEY is set but empty"):
        keys(VLLM_API_KEY="")


@pytest.mark.parametrize(("given", "level"), [("DEBUG", "debug"), ("WARNING", "warning"), ("CRITICAL", "error")])
def test_the_level_of_logs_is_taken(given: str, level: str) -> None:
    assert from_args(ProcessConfig, NOTHING, {"VLLM_LOGGING_LEVEL": given}).log_level == level


def test_the_configuration_of_logs_is_taken() -> None:
    environ = {"VLLM_LOGGING_CONFIG_PATH": "/etc/logs.json"}
    assert from_args(ServerConfig, NOTHING, environ).log_config_file == "/etc/logs.json"
    assert unknown_variables(environ) == [
        "VLLM_LOGGING_CONFIG_PATH is read as --log-config-file, unless that is given"
    ]


def test_a_level_that_does_not_exist_names_the_variable() -> None:
    with pytest.raises(ConfigError, match="VLLM_LOGGING_LEVEL: 'loud' is not one of debug, info"):
        from_args(ProcessConfig, NOTHING, {"VLLM_LOGGING_LEVEL": "LOUD"})


def test_variables_without_effect_are_named_in_few_lines() -> None:
    found = unknown_variables(
        {
            "VLLM_HOST_IP": "10.0.0.1",
            "VLLM_PORT": "29500",
            "VLLM_USE_V1": "1",
            "VLLM_ATTENTION_BACKEND": "FLASH_ATTN",
            "VLLM_NO_USAGE_STATS": "1",
        }
    )
    assert found == [
        "VLLM_HOST_IP has no effect: it is the address between vLLM's processes; the one of the API is --host",
        "VLLM_PORT has no effect: it is the port between vLLM's processes; the one of the API is --port",
        "VLLM_ATTENTION_BACKEND, VLLM_USE_V1 have no effect: Kvasir does not read variables of vLLM",
    ]


def test_variables_of_a_service_named_vllm_are_not_settings() -> None:
    assert not unknown_variables(
        {
            "VLLM_SERVICE_HOST": "10.0.0.1",
            "VLLM_PORT": "tcp://10.0.0.1:8000",
            "VLLM_LLAMA_PORT_8000_TCP_ADDR": "10.0.0.1",
            "VLLM_LLAMA_SERVICE_PORT_HTTP": "8000",
        }
    )


def test_a_pod_takes_no_key_from_a_variable_of_vllm() -> None:
    managed = {"KVASIR_MANAGED_VARIABLES": "KVASIR_HOST", "KVASIR_HOST": "*"}
    refuse_unmanaged_variables({**managed, "VLLM_USE_V1": "1"})
    with pytest.raises(ConfigError, match="VLLM_API_KEY: in a pod, options are set by fields"):
        refuse_unmanaged_variables({**managed, "VLLM_API_KEY": "k"})
