import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import CohereConfig, Olmo2Config, OlmoConfig, PreTrainedModel, Qwen3Config, Qwen3MoeConfig

from kvasir.hub.chat_templates.chat_template import ChatTemplate
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch
from kvasir.hub.tokenizer import load_tokenizer
from kvasir.layers.linear import Linear, StackedLinear
from kvasir.layers.parameter import Placement
from kvasir.models.checkpoints.open_checkpoint import SafetensorsTensor
from kvasir.models.load_model import load_model
from kvasir.models.model_load_error import ModelLoadError
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from runtime.models.split_answers import TOKENS, Answers, answers, answers_of_all
from runtime.models.tiny import FAMILIES, MODELS, MOE, decoder, gpt2, llama, save
from runtime.parallel.processes import run_processes
from runtime.parallel.thread_group import Meeting, ThreadGroup, run_ranks
from runtime.worker.driver import Driver, greedy


def assert_alike(found: Answers, expected: Answers) -> None:
    for name, (tokens, scores) in expected.items():
        assert found[name][0] == tokens
        assert len(scores) > 20 * TOKENS
        assert torch.allclose(torch.tensor(found[name][1]), torch.tensor(scores), atol=2e-4)


VARIANTS: dict[str, Callable[[], PreTrainedModel]] = {
    "qwen3-one-kv-head": lambda: decoder(Qwen3Config, head_dim=32, num_key_value_heads=1),
    "olmo2-one-kv-head": lambda: decoder(Olmo2Config, num_key_value_heads=1),
    "cohere-one-kv-head": lambda: decoder(CohereConfig, num_key_value_heads=1, use_qk_norm=True),
    "llama-odd-vocabulary": lambda: llama(vocab_size=251, tie_word_embeddings=True),
    "gpt2-odd-vocabulary": lambda: gpt2(vocab_size=253),
}
ALL = {**MODELS, **FAMILIES, **VARIANTS}
ONE_OF_EACH = ["llama-gqa", "qwen3-one-kv-head", "gpt2", "qwen3-moe", "gemma3"]


@pytest.mark.parametrize("name", list(ALL))
def test_two_ranks_answer_as_one(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = answers(path, SINGLE)
    for found in run_ranks(2, lambda group: answers(path, ParallelState(group))):
        assert_alike(found, expected)


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-one-kv-head", "gpt2-odd-vocabulary", "phi3", "qwen3-moe"])
def test_four_ranks_answer_as_one(name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = answers(path, SINGLE)
    for found in run_ranks(4, lambda group: answers(path, ParallelState(group))):
        assert_alike(found, expected)


@pytest.mark.parametrize("name", ["qwen3-moe", "qwen3-moe-and-dense"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_with_whole_experts_answer_as_one(ranks: int, name: str, tmp_path: Path) -> None:
    path = save(ALL[name](), tmp_path)
    expected = answers(path, SINGLE)
    for found in run_ranks(ranks, lambda group: answers(path, ParallelState(group, expert_parallel=True))):
        assert_alike(found, expected)


def test_processes_over_gloo_answer_as_one(tmp_path: Path) -> None:
    for name in ONE_OF_EACH:
        save(ALL[name](), tmp_path / name)
    expected = {name: answers(tmp_path / name, SINGLE) for name in ONE_OF_EACH}
    expected["whole experts"] = expected["qwen3-moe"]
    for found in run_processes(2, answers_of_all, tmp_path, tmp_path, ONE_OF_EACH, "qwen3-moe"):
        assert found.keys() == expected.keys()
        for name, answer in found.items():
            assert_alike(answer, expected[name])


def load(path: Path, parallel: ParallelState) -> torch.nn.Module:
    placement = Placement(torch.device("cpu"), torch.float32, parallel)
    model = load_model(load_model_info(path), placement, 64, lambda done, total: None)
    assert isinstance(model, torch.nn.Module)
    return model


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("name", [*ONE_OF_EACH, "phi3", "phi"])
def test_a_rank_reads_the_parts_that_it_holds(
    name: str, experts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0
    lock = threading.Lock()
    read_part = SafetensorsTensor.__getitem__

    def count(tensor: SafetensorsTensor, part: tuple[slice, ...]) -> Tensor:
        nonlocal read
        piece = read_part(tensor, part)
        with lock:  # several threads read
            read += piece.nbytes
        return piece

    monkeypatch.setattr(SafetensorsTensor, "__getitem__", count)
    path = save(ALL[name](), tmp_path)
    held = []
    for rank in range(2):
        read = 0
        parallel = ParallelState(ThreadGroup(rank, Meeting(2)), expert_parallel=experts)
        model = load(path, parallel)
        held.append(sum(parameter.nbytes for parameter in model.parameters()))
        assert read == held[-1]
    whole = sum(parameter.nbytes for parameter in load(path, SINGLE).parameters())
    assert held[0] == held[1] < 0.62 * whole


@pytest.mark.parametrize("name", ["llama-gqa", "qwen3-moe", "phi", "gpt2"])
def test_layers_have_the_names_of_their_modules(name: str, tmp_path: Path) -> None:
    layers = [
        (path, layer.name)
        for path, layer in load(save(ALL[name](), tmp_path), SINGLE).named_modules()
        if isinstance(layer, Linear | StackedLinear)
    ]
    assert len(layers) > 12
    assert all(path == own for path, own in layers)


THREE_KV_HEADS = r"num_key_value_heads = 3 of config.json: choose 1$"


@pytest.mark.parametrize(
    ("build", "ranks", "experts", "reason"),
    [
        (llama, 3, False, r"3 does not divide num_attention_heads = 4 of config.json: choose 1 or 2 or 4$"),
        (lambda: llama(hidden_size=96, num_attention_heads=12, num_key_value_heads=3), 2, False, THREE_KV_HEADS),
        (lambda: llama(intermediate_size=111), 2, False, r"2 does not divide intermediate_size = 111 .*choose 1$"),
        (lambda: decoder(Qwen3MoeConfig, **MOE | {"moe_intermediate_size": 49}), 2, False, r"moe_intermediate.*49"),
        (lambda: decoder(Qwen3MoeConfig, **MOE | {"num_experts": 7}), 2, True, r"num_experts = 7"),
        (lambda: gpt2(n_head=8), 3, False, r"n_head = 8 .*1 or 2 or 4 or 8"),
        (lambda: gpt2(n_inner=98), 4, False, r"n_inner = 98 .*1 or 2$"),
    ],
)
def test_a_shape_that_cannot_be_split_is_refused(
    build: Callable[[], PreTrainedModel], ranks: int, experts: bool, reason: str, tmp_path: Path
) -> None:
    path = save(build(), tmp_path)
    parallel = ParallelState(ThreadGroup(0, Meeting(ranks)), expert_parallel=experts)
    with pytest.raises(ModelLoadError, match=reason):
        load(path, parallel)


def test_code_of_transformers_is_not_split(tmp_path: Path) -> None:
    path = save(decoder(OlmoConfig), tmp_path)
    with pytest.raises(ModelLoadError, match=r"OlmoForCausalLM .*--tensor-parallel-size 1"):
        load(path, ParallelState(ThreadGroup(0, Meeting(2))))


def demo_tokens(prompts: list[list[int]], parallel: ParallelState) -> dict[str, list[int]]:
    driver = Driver.load(fetch("demo://", weights=True), parallel=parallel, dtype="bfloat16")
    for index, prompt in enumerate(prompts):
        driver.add(str(index), prompt, greedy(24))
    return driver.run()


def test_the_demo_model_in_bfloat16_answers_alike_on_two_ranks() -> None:
    path = fetch("demo://", weights=True)
    questions = ["How do I install Kvasir?", "How do I start Kvasir?", "What is an engine?"]
    tokenizer, template = load_tokenizer(path), ChatTemplate.load(path)
    assert template is not None
    texts = [template.render([{"role": "user", "content": question}]) for question in questions]
    prompts = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    expected = demo_tokens(prompts, SINGLE)
    for found in run_ranks(2, lambda group: demo_tokens(prompts, ParallelState(group))):
        assert found == expected
