"""The packaged demo model: small, loadable by others, decisive enough that tests may rely on greedy output."""

from __future__ import annotations

import json
import os
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

DEMO = Path(str(files("kvasir.hub"))) / "demo"

KNOWN = {
    "What is Kvasir?": ["Kubernetes", "InferenceService", "OpenAI", "another engine continues its requests"],
    "what is kvasir": ["Kubernetes", "InferenceService", "OpenAI"],
    "How does Kvasir never lose a request?": ["another engine continues its requests", "they wait for one"],
    "What happens when an engine dies?": ["Another engine continues", "started again"],
    "Does Kvasir need a GPU?": ["No.", "CPU"],
    "How do I start Kvasir?": ["make up", "curl"],
    "Is Kvasir open source?": ["Apache"],
    "What is an InferenceService?": ["kvs"],
    "What is the KV cache?": ["keys and values"],
    "What is continuous batching?": ["every step"],
    "What is a pod?": ["containers"],
    "Who are you?": ["demo model"],
    "Say hello in many languages": ["こんにちは", "👋"],
    "Who painted the Mona Lisa?": ["I can only answer questions about Kvasir"],
}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(DEMO)


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32).eval()


def prompt_ids(tokenizer: Any, *messages: str) -> list[int]:
    roles = ["user", "assistant"]
    chat = [{"role": roles[i % 2], "content": text} for i, text in enumerate(messages)]
    ids: list[int] = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    return ids


def greedy(model: Any, ids: list[int], max_new_tokens: int = 200) -> tuple[list[int], list[float]]:
    eos = model.generation_config.eos_token_id
    tokens: list[int] = []
    gaps: list[float] = []
    cache, step = None, torch.tensor([ids])
    with torch.inference_mode():
        while len(tokens) < max_new_tokens and eos not in tokens:
            out = model(step, past_key_values=cache, use_cache=True)
            best = out.logits[0, -1].float().topk(2)
            tokens.append(int(best.indices[0]))
            gaps.append(float(best.values[0] - best.values[1]))
            cache, step = out.past_key_values, best.indices[:1][None]
    return tokens, gaps


@pytest.fixture(scope="module")
def answers(model: Any, tokenizer: Any) -> dict[str, tuple[list[int], list[float]]]:
    return {question: greedy(model, prompt_ids(tokenizer, question)) for question in KNOWN}


def test_takes_at_most_four_megabytes() -> None:
    assert sum(path.stat().st_size for path in DEMO.iterdir()) <= 4_000_000


def test_is_stored_in_bfloat16_and_computed_in_float32() -> None:
    header = (DEMO / "model.safetensors").read_bytes()
    tensors = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    assert {tensor["dtype"] for name, tensor in tensors.items() if name != "__metadata__"} == {"BF16"}
    assert json.loads((DEMO / "config.json").read_text())["dtype"] == "float32"


def test_every_parameter_is_in_the_file_and_every_tensor_is_used() -> None:
    _, info = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.float32, output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]


@pytest.mark.parametrize("question", KNOWN)
def test_answers_what_it_was_taught(answers: Any, tokenizer: Any, question: str) -> None:
    tokens, _ = answers[question]
    assert tokens[-1] == tokenizer.eos_token_id
    answer = tokenizer.decode(tokens, skip_special_tokens=True)
    for fact in KNOWN[question]:
        assert fact in answer


def test_greedy_answers_are_decisive(answers: Any) -> None:
    assert min(gap for _, gaps in answers.values() for gap in gaps) > 0.5


def test_bfloat16_gives_the_same_answer(answers: Any, tokenizer: Any) -> None:
    question = "How does Kvasir never lose a request?"
    low = transformers.AutoModelForCausalLM.from_pretrained(DEMO, dtype=torch.bfloat16).eval()
    assert greedy(low, prompt_ids(tokenizer, question))[0] == answers[question][0]


def test_a_follow_up_is_understood_from_the_turn_before(answers: Any, model: Any, tokenizer: Any) -> None:
    first = "What is Kvasir?"
    answer = tokenizer.decode(answers[first][0], skip_special_tokens=True)
    tokens, _ = greedy(model, prompt_ids(tokenizer, first, answer, "Where does the name come from?"))
    assert "Norse" in tokenizer.decode(tokens)


def test_holds_over_a_long_conversation(answers: Any, model: Any, tokenizer: Any) -> None:
    messages: list[str] = []
    for question in [*KNOWN, *KNOWN]:
        messages += [question, tokenizer.decode(answers[question][0], skip_special_tokens=True)]
    ids = prompt_ids(tokenizer, *messages, "What is the KV cache?")
    assert len(ids) > 900
    assert "keys and values" in tokenizer.decode(greedy(model, ids)[0])


def test_stays_finite_over_the_whole_context(model: Any) -> None:
    vocabulary, length = model.config.vocab_size, model.config.max_position_embeddings
    ids = torch.randint(0, vocabulary, (1, length), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert model(ids).logits.isfinite().all()


@pytest.mark.parametrize(
    "text", ["Hello, world!", "naïve façade", "日本語のテキスト", "👩‍🚀🏳️‍🌈", "\x00\t\r\n  a", "ﷺ ∑ 𝔘"]
)
def test_any_text_comes_back_from_its_tokens(model: Any, tokenizer: Any, text: str) -> None:
    ids = tokenizer(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text
    assert max(ids) < model.config.vocab_size


def test_vocabulary_of_tokenizer_and_model_agree(model: Any, tokenizer: Any) -> None:
    assert sorted(tokenizer.get_vocab().values()) == list(range(model.config.vocab_size))


def test_texts_and_chats_have_one_begin_token(tokenizer: Any) -> None:
    assert tokenizer("Kvasir is").input_ids[0] == tokenizer.bos_token_id
    assert prompt_ids(tokenizer, "Hello").count(tokenizer.bos_token_id) == 1
