"""Settings that a service's processes would refuse are refused before any process starts."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from kvasir.cli import serve
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.local import check_model
from kvasir.local.check_model import check_split


def check(*options: str) -> str:
    return serve.check_settings(serve.settings_of(serve.parser().parse_args(["demo://", *options])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--tensor-parallel-size", "3"],
            "3 does not divide num_attention_heads = 4 of config.json: choose 1 or",
        ),
        (
            ["--pipeline-parallel-size", "5"],
            "5 is more than num_hidden_layers = 3 of config.json: choose at most",
        ),
        (["--kv-cache-memory-bytes", "900Ti"], "the KV cache needs 921600.00 GiB, and this process may use"),
        (["-tp", "2", "--kv-cache-memory-bytes", "900Ti"], "the KV caches of 2 workers need"),
        (["--reasoning-parser", "foo"], "--reasoning-parser foo: no reasoning format has this name"),
        (["--tool-call-parser", "foo"], "--tool-call-parser foo: no tool format has this name"),
        (["--chat-template", "/no/such"], "--chat-template /no/such: No such file"),
        (["--chat-template", "{{ messages"], "--chat-template"),
        (["--ssl-certfile", "/no/such"], "--ssl-certfile /no/such: No such file"),
        (["--max-model-len", "999999"], "more than the model's own"),
        (["--kv-cache-dtype", "fp8"], "--kv-cache-dtype fp8 needs an NVIDIA GPU"),
        (["--async-scheduling", "-pp", "2"], "--async-scheduling has no effect with --pipeline-parallel-size 2"),
        (["--tool-parser-plugin", "/no/such"], "--tool-parser-plugin /no/such: there is no such file"),
        (["--reasoning-parser-plugin", "/no"], "--reasoning-parser-plugin /no: there is no such file"),
        (["--worker-cls", "nope"], "--worker-cls nope: no installed package has this entry point"),
        (["--worker-extension-cls", "nope"], "--worker-extension-cls nope: no installed package"),
        (["--api-key-dir", "/no/such"], "--api-key-dir /no/such is not a directory"),
        (["--admin-api-key-dir", "/dev/null"], "--admin-api-key-dir /dev/null is not a directory"),
    ],
)
def test_wrong_settings_are_found_before_a_process_starts(options: Sequence[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("{{", r"\{\{")):
        check("--device", "cpu", *options)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-tp", "2", "-pp", "3"],
        ["--reasoning-parser", "qwen3", "--tool-call-parser", "none"],
        ["--reasoning-parser", "mine", "--reasoning-parser-plugin", __file__],
        ["--kv-cache-memory-bytes", "900Ti", "--num-gpu-blocks-override", "4"],
        ["--chat-template", "{{ messages }}"],
    ],
)
def test_settings_that_a_process_accepts_pass(options: Sequence[str]) -> None:
    assert check("--device", "cpu", *options)


@pytest.mark.parametrize(
    ("variable", "has_driver", "is_checked"), [(None, True, False), (None, False, True), ("", True, True)]
)
def test_settings_of_a_gpu_without_a_device_number_pass(
    variable: str | None,
    has_driver: bool,
    is_checked: bool,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # As on WSL, with /dev/dxg only.
    monkeypatch.setattr(check_model, "GPU_DRIVERS", (tmp_path if has_driver else tmp_path / "dxg",))
    monkeypatch.setattr(check_model, "visible_gpus", list)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    with pytest.raises(ConfigError, match="needs an NVIDIA GPU") if is_checked else nullcontext():
        check("--kv-cache-dtype", "fp8")


@pytest.mark.parametrize(
    ("config", "ranks", "accepted"),
    [
        ({"num_attention_heads": 12}, 4, True),
        ({"num_attention_heads": 12}, 8, False),
        ({"n_head": 12}, 5, False),
        ({"text_config": {"num_attention_heads": 6}}, 4, False),
        ({"num_attention_heads": 8, "text_config": {"num_attention_heads": 6}}, 3, True),
        ({"num_attention_heads": [4, 8]}, 3, True),  # left to the engine
        ({}, 3, True),
    ],
)
def test_heads_decide_about_tensor_parallel_sizes(config: dict[str, object], ranks: int, accepted: bool) -> None:
    executor = ExecutorConfig(tensor_parallel_size=ranks)
    if accepted:
        check_split(config, executor)
    else:
        with pytest.raises(ConfigError, match=f"--tensor-parallel-size {ranks} does not divide"):
            check_split(config, executor)
