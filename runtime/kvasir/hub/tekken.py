"""Make a tokenizer.json of tekken.json, the vocabulary of Mistral's models.

It holds tokens as bytes with ranks, as tiktoken has them.
"""

import base64
from pathlib import Path
from typing import Any, Final

from kvasir.hub.gguf.gguf_splits import BYTE_LEVEL, WordSplits
from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_json, write_json

TEKKEN: Final = "tekken.json"
# of files that do not list them
_SPECIAL: Final = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
    "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


def convert_tekken(file: Path, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json to a folder. Raises HubError."""
    content = read_json(file)
    try:
        config = content["config"]
        count, size = config["default_num_special_tokens"], config["default_vocab_size"]
        listed = {entry["rank"]: entry["token_str"] for entry in content.get("special_tokens") or ()}
        listed = listed or dict(enumerate(_SPECIAL))
        special = [listed.get(rank, f"<SPECIAL_{rank}>") for rank in range(count)]
        ranks = {base64.b64decode(entry["token_bytes"]): entry["rank"] for entry in content["vocab"]}
        pattern = config["pattern"]
    except (KeyError, TypeError, ValueError) as error:
        raise HubError(f"{file} is not a vocabulary of Mistral ({type(error).__name__}: {error})") from None
    ranks = {token: rank for token, rank in ranks.items() if rank < size - count}
    named = {f"{name}_token": token for name, token in (("bos", "<s>"), ("eos", "</s>"), ("unk", "<unk>"))}
    write_json(folder / "tokenizer.json", _tokenizer(pattern, special, ranks))
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **named})


def _tokenizer(pattern: str, special: list[str], ranks: dict[bytes, int]) -> dict[str, Any]:
    text = {token: token.decode("latin-1").translate(_LETTERS) for token in ranks}
    vocab = {token: index for index, token in enumerate(special)}
    vocab |= {text[token]: rank + len(special) for token, rank in ranks.items()}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    start, sequence = {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}
    return {
        "version": "1.0",
        "added_tokens": [{"id": index, "content": token, **flags} for index, token in enumerate(special)],
        "pre_tokenizer": WordSplits((pattern,)).pre_tokenizer(),
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [start, sequence],
            "pair": [start, sequence, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [special.index("<s>")], "tokens": ["<s>"]}},
        },
        "decoder": BYTE_LEVEL,
        # tiktoken takes a word that is a token as it is
        "model": {"type": "BPE", "ignore_merges": True, "vocab": vocab, "merges": _merges(ranks, text)},
    }


def _merges(ranks: dict[bytes, int], text: dict[bytes, str]) -> list[list[str]]:
    pairs = [
        (rank, ranks[token[:cut]], ranks[token[cut:]], token, cut)
        for token, rank in ranks.items()
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]
    return [[text[token[:cut]], text[token[cut:]]] for _, _, _, token, cut in sorted(pairs)]


def _letters() -> dict[int, str]:
    """Return the letters that stand for bytes in byte-level vocabularies.

    >>> _letters()[32], _letters()[97]
    ('Ġ', 'a')
    """
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    return {byte: chr(byte) for byte in printed} | {byte: chr(256 + place) for place, byte in enumerate(others)}


_LETTERS: Final = _letters()
