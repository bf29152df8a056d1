"""`kvasir fit`: its output for a model that fits, and for one that does not."""

import json
from pathlib import Path
from typing import Any

import pytest

from kvasir.cli.main import main
from kvasir.config.hardware import device_facts

TENTH_OF_LLAMA_70B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_hidden_layers": 8,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "bfloat16",
    "eos_token_id": 128001,
}


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A directory with nothing but a config.json."""
    (tmp_path / "config.json").write_text(json.dumps(TENTH_OF_LLAMA_70B))
    return str(tmp_path)


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in capsys.readouterr().out.splitlines():
        name, text = line.split(maxsplit=1)
        found.setdefault(name, []).append(text)
    return found


def test_fit_shows_what_a_start_on_a_cpu_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", "demo://"]) == 0
    shown = lines(capsys)
    assert shown["KV"] == ["cache   3 KiB per token in 3 layers (float32)"]
    assert shown["room"] == ["1023.9 MiB: 21844 blocks of 16 tokens"]  # as in the log of a start
    assert "GPUs" not in shown


def test_fit_names_the_splits_that_have_room(large: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", large, "--gpu", "12Gi", "--tensor-parallel-size", "4"]) == 0
    shown = lines(capsys)
    assert shown["weights"] == ["4.17 GiB on each of 4 GPUs"]
    assert "1 does not fit; 2 has 342 blocks" in shown["GPUs"][0]
    assert [text.split()[2] for text in shown["requests"]] == ["1024", "8192", "32768", "131072"]


def test_fit_of_a_model_that_is_too_large_is_an_error(large: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", large, "--gpu", "8Gi"]) == 2
    printed = capsys.readouterr()
    assert "16.66 GiB" in printed.out
    assert "1 does not fit; 2 does not fit; 4 has" in printed.out
    assert printed.err.startswith("kvasir fit: ")
    assert printed.err.count("\n") == 1


def test_fit_counts_fewer_bytes_of_quantised_weights(large: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", large, "--gpu", "h200", "--quantization", "int4", "--max-model-len", "4096"]) == 0
    shown = lines(capsys)
    assert shown["weights"][0].startswith("6.37 GiB")
    assert shown["longest"] == ["4096 tokens"]
    assert shown["speed"][0].startswith("at most")


def test_fit_names_known_gpus(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["fit", "demo://", "--gpu", "H9"])
    assert end.value.code == 2
    assert "'H9' is not known: give a memory such as 80Gi, or one of A10, " in capsys.readouterr().err


def test_fit_on_a_small_machine_names_its_memory(
    large: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_facts, "memory_limit", lambda: 2**33)
    assert main(["fit", large]) == 2
    assert "GiB, and this machine has 8.00 GiB" in capsys.readouterr().err
