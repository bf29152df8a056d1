"""Train the demo model (`demo://`) from its corpus and write it into the package: make demo-model

A byte-level BPE tokenizer, then a Llama of 1.9 M parameters from scratch, in minutes on two CPU cores. It overfits
on purpose: greedy answers are decisive, so that tests can rely on them. Needs the `engine` and `dev` extras.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM

from demo.batches import BEGIN, END, MAX_POSITIONS, SPECIAL, Batch, Batches
from demo.evaluate import evaluate
from demo.reading import Corpus, read_corpus
from demo.tools import read_tools

HERE = Path(__file__).parent
PACKAGE_DATA = HERE.parent / "runtime/kvasir/hub/demo"
SIZE_LIMIT = 4_000_000  # bytes, of everything that is packaged


def main() -> None:
    args = parse_arguments()
    torch.manual_seed(args.seed)
    torch.set_num_threads(args.threads)
    corpus = read_corpus()
    tokenizer = (
        train_tokenizer(corpus, args.vocab_size)
        if args.start is None
        else Tokenizer.from_file(str(args.start / "tokenizer.json"))
    )
    config = model_config(tokenizer.get_vocab_size())
    model = LlamaForCausalLM(LlamaConfig(**config))
    parameters = sum(p.numel() for p in model.parameters())
    questions = sum(len(entry.questions) for entry in corpus.entries)
    print(f"{len(corpus.entries)} answers, {questions} questions, {parameters:,} parameters", flush=True)
    if args.start is not None:
        model.load_state_dict(load_file(args.start / "model.safetensors"), strict=False)
    train(model, Batches(corpus, tokenizer, random.Random(args.seed), copies=args.start is not None), args)
    round_to_bfloat16(model)
    write_package_data(args.output, config, model, tokenizer)
    print(evaluate(args.output, corpus, HERE / "held-out.md"))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3600, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="tokens a step (default: %(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-3, help="at its peak (default: %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=1536, help="of the tokenizer (default: %(default)s)")
    parser.add_argument(
        "--precision",
        choices=("bfloat16", "float32"),
        default="bfloat16",
        help="of matrix products; float32 is faster on a CPU without bfloat16 instructions (default: %(default)s)",
    )
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and batches (default: %(default)s)")
    parser.add_argument("--start", type=Path, help="folder of a model to train on (default: begin with a new one)")
    parser.add_argument("--output", type=Path, default=PACKAGE_DATA, help="folder to write (default: the package)")
    return parser.parse_args()


# -- tokenizer and architecture ------------------------------------------------------------------------------


def train_tokenizer(corpus: Corpus, vocab_size: int) -> Tokenizer:
    """Train a byte-level tokenizer: any text round-trips, and plain text starts with `<|begin|>`, as in Llama.

    The words of tools are added to its vocabulary: a word is the same token in a question and in a JSON text.
    """
    tools = read_tools(corpus.unknown.answer)
    words = [AddedToken(word, single_word=True, normalized=False) for word in tools.words()]
    merged = vocab_size - len(words)
    while True:  # a word may be in the vocabulary already
        tokenizer = _train_bpe([*corpus.texts(), *tools.texts()], merged)
        tokenizer.add_tokens(words)
        if tokenizer.get_vocab_size() >= vocab_size:
            break
        merged += 1
    begin = tokenizer.token_to_id(BEGIN)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", pair=f"{BEGIN} $A $B", special_tokens=[(BEGIN, begin)]
    )
    return tokenizer


def _train_bpe(texts: list[str], vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def model_config(vocab_size: int) -> dict[str, Any]:
    """Return the content of config.json: stored in bfloat16, computed in float32, so that machines agree."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "vocab_size": vocab_size,
        "hidden_size": 256,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "max_position_embeddings": MAX_POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": SPECIAL.index(BEGIN),
        "eos_token_id": SPECIAL.index(END),
    }


# -- training ------------------------------------------------------------------------------------------------


def train(model: LlamaForCausalLM, batches: Batches, args: argparse.Namespace) -> None:
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
        lr=args.learning_rate,
        betas=(0.9, 0.95),
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.learning_rate, total_steps=args.steps, pct_start=0.05, anneal_strategy="linear"
    )
    started, running = time.monotonic(), 0.0
    for step in range(1, args.steps + 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = weighted_loss(model, batches.batch(args.batch_tokens))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        running = loss.item() if step == 1 else 0.95 * running + 0.05 * loss.item()
        if step % 50 == 0 or step == args.steps:
            elapsed = time.monotonic() - started
            left = elapsed / step * (args.steps - step)
            print(f"step {step}/{args.steps}  loss {running:.4f}  {elapsed:.0f} s, {left:.0f} s left", flush=True)


def weighted_loss(model: LlamaForCausalLM, batch: Batch) -> torch.Tensor:
    logits = model(input_ids=batch.tokens[:, :-1], use_cache=False).logits  # [B, S-1, V]
    targets, weights = batch.tokens[:, 1:], batch.weights[:, 1:]
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    loss: torch.Tensor = (losses * weights.flatten()).sum() / weights.sum()
    return loss


# -- output --------------------------------------------------------------------------------------------------


def round_to_bfloat16(model: LlamaForCausalLM) -> None:
    """Round the weights to values that bfloat16 holds, so that storing them in half the bytes loses nothing."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.to(torch.bfloat16).to(torch.float32))


def write_package_data(folder: Path, config: dict[str, Any], model: LlamaForCausalLM, tokenizer: Tokenizer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    weights = {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)
    write_json(folder / "config.json", config)
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id")}
    write_json(folder / "generation_config.json", generation)
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": END,
            "model_max_length": MAX_POSITIONS,
            "clean_up_tokenization_spaces": False,
        },
    )
    (folder / "chat_template.jinja").write_text((HERE / "chat_template.jinja").read_text())
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{folder}: {size:,} bytes")
    if size > SIZE_LIMIT:
        raise SystemExit(f"the demo model takes {size:,} bytes, more than the {SIZE_LIMIT:,} that are packaged")


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
