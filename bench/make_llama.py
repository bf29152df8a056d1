"""Writes a Llama with random weights in bfloat16, and a tokenizer (the demo model's by default), for measurements.

python bench/make_llama.py /tmp/llama-126m            # 126 M parameters
python bench/make_llama.py /tmp/llama-1m --hidden 128 --layers 2 --heads 4 --mlp 256 --vocab 4096
python bench/make_llama.py /tmp/llama-152m --vocab 32768 --train-tokenizer  # every token has a text
"""

import argparse
import json
import shutil
import sys
import sysconfig
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from kvasir.hub.source import fetch

# Most files to train a tokenizer on.
SOURCES = 4000


def tensors(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(args.seed)

    def weight(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).to(torch.bfloat16)

    hidden, mlp = args.hidden, args.mlp
    result = {
        "model.embed_tokens.weight": weight(args.vocab, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=torch.bfloat16),
        "lm_head.weight": weight(args.vocab, hidden) * with_text(args.vocab, args.directory)[:, None],
    }
    for layer in range(args.layers):
        prefix = f"model.layers.{layer}"
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            result[f"{prefix}.self_attn.{name}.weight"] = weight(hidden, hidden)
        result[f"{prefix}.mlp.gate_proj.weight"] = weight(mlp, hidden)
        result[f"{prefix}.mlp.up_proj.weight"] = weight(mlp, hidden)
        result[f"{prefix}.mlp.down_proj.weight"] = weight(hidden, mlp)
        for name in ("input_layernorm", "post_attention_layernorm"):
            result[f"{prefix}.{name}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    return result


def with_text(vocab: int, folder: Path) -> torch.Tensor:
    # [vocab] 1 for tokens of plain text. Greedy decoding picks no others: each token is a chunk for a streaming
    # client.
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    result = torch.zeros(vocab, dtype=torch.bfloat16)
    for token, index in tokenizer["model"]["vocab"].items():
        if index < vocab and index not in special and token.replace("Ġ", "").isascii():
            result[index] = 1
    return result


def config(args: argparse.Namespace) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "hidden_size": args.hidden,
        "intermediate_size": args.mlp,
        "num_hidden_layers": args.layers,
        "num_attention_heads": args.heads,
        "num_key_value_heads": args.heads,
        "head_dim": args.hidden // args.heads,
        "vocab_size": args.vocab,
        "max_position_embeddings": args.context,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def copy_tokenizer(folder: Path) -> None:
    demo = fetch("demo://", weights=False)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (demo / name).exists():
            shutil.copy(demo / name, folder / name)


def train_tokenizer(folder: Path, vocab: int) -> None:
    """Replace the demo model's tokenizer by a byte-level BPE with the same special tokens."""
    copied = Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = sorted(copied.get_added_tokens_decoder().items())
    special = [token.content for _, token in added if token.special]
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(vocab_size=vocab, special_tokens=special, initial_alphabet=alphabet, min_frequency=1)
    sources = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))[:SOURCES]
    tokenizer.train_from_iterator((path.read_text(errors="ignore") for path in sources), trainer)
    tokenizer.save(str(folder / "tokenizer.json"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--mlp", type=int, default=3072)
    parser.add_argument("--vocab", type=int, default=8192, help="at least the demo tokenizer's")
    parser.add_argument(
        "--train-tokenizer", action="store_true", help="of --vocab tokens, on the sources of this Python"
    )
    parser.add_argument("--context", type=int, default=4096, help="tokens of prompt and output together")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.directory.mkdir(parents=True, exist_ok=True)
    copy_tokenizer(args.directory)
    if args.train_tokenizer:
        train_tokenizer(args.directory, args.vocab)
    weights = tensors(args)
    save_file(weights, args.directory / "model.safetensors", metadata={"format": "pt"})
    (args.directory / "config.json").write_text(json.dumps(config(args), indent=2) + "\n")
    print(f"{sum(tensor.numel() for tensor in weights.values()) / 1e6:.1f} M parameters in {args.directory}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
