"""Make tokenizer.json and tokenizer_config.json of a GGUF file's vocabulary.

Two kinds are read: gpt2 (byte-level BPE with merges) and llama (sentencepiece: scores and tokens for bytes).
"""

from collections.abc import Mapping
from typing import Any, Final

from kvasir.hub.gguf.gguf_metadata import Metadata
from kvasir.hub.gguf.gguf_splits import BYTE_LEVEL, SPLITS, WordSplits
from kvasir.hub.hub_errors import HubError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE: Final = "▁"
_NAMED: Final = (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
# Ends of a turn. Files name one of them, and their models may write another (llama.cpp has such a list, too).
_ENDS: Final = frozenset(
    ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>")
)
# Phi-3's chat tokens take the white space that follows them; these do not.
_KEEP_SPACE: Final = frozenset(("<s>", "<unk>", "<|endoftext|>"))


class GGUFVocabulary:
    """Raises HubError for a kind that is not read."""

    def __init__(self, metadata: Metadata) -> None:
        self.kind = str(_of(metadata, "model"))
        if self.kind not in ("gpt2", "llama"):
            raise HubError(f"the vocabulary of the GGUF file is of kind {self.kind}, and read are gpt2 and llama")
        self.tokens: list[str] = _list(metadata, "tokens", str)
        self.types: list[int] = _list(metadata, "token_type", int) or [_NORMAL] * len(self.tokens)
        if not self.tokens or len(self.types) != len(self.tokens):
            raise HubError(f"the GGUF file has {len(self.tokens)} tokens with {len(self.types)} types")
        self._metadata = metadata

    def named(self) -> dict[str, str]:
        """Return bos_token and its like."""
        found = {f"{name}_token": self._token(f"{key}_token_id") for name, key in _NAMED}
        return {name: token for name, token in found.items() if token is not None}

    def end_ids(self) -> list[int]:
        """Return the tokens that end an answer, the file's own first."""
        named = [_of(self._metadata, f"{name}_token_id") for name in ("eos", "eot", "eom")]
        marked = (_CONTROL, _USER_DEFINED)
        known = [i for i, token in enumerate(self.tokens) if token in _ENDS and self.types[i] in marked]
        return list(dict.fromkeys(token for token in (*named, *known) if isinstance(token, int)))

    def tokenizer_json(self) -> dict[str, Any]:
        return self._byte_level() if self.kind == "gpt2" else self._sentencepiece()

    def tokenizer_config(self) -> dict[str, Any]:
        template = self._metadata.of_file("tokenizer.chat_template")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", **self.named()}
        return config | ({"chat_template": template} if isinstance(template, str) else {})

    def _byte_level(self) -> dict[str, Any]:
        splits = self._splits()
        merges = [merge.split(" ", 1) for merge in _list(self._metadata, "merges", str)]
        return self._whole(
            model=_bpe(self.tokens, merges) | {"ignore_merges": splits.whole_words},
            normalizer={"type": "NFC"} if splits.composed else None,
            pre_tokenizer=splits.pre_tokenizer(),
            decoder=BYTE_LEVEL,
            add_bos=splits.add_bos,
        )

    def _splits(self) -> WordSplits:
        # older files do not name it
        name = _of(self._metadata, "pre", "gpt-2" if self._metadata.architecture in ("gpt2", "phi2") else "default")
        if name not in SPLITS:
            raise HubError(f"the vocabulary of the GGUF file splits words in the way {name}, which is not known")
        return SPLITS[name]

    def _sentencepiece(self) -> dict[str, Any]:
        prefix = bool(_of(self._metadata, "add_space_prefix", True))
        to_sign = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
        prepend = [{"type": "Prepend", "prepend": _SPACE}] if prefix else []
        strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix else []
        to_space = {"type": "Replace", "pattern": {"String": _SPACE}, "content": " "}
        unknown = self._token("unknown_token_id")
        return self._whole(
            model=_bpe(self.tokens, self._merges())
            | {"unk_token": unknown, "fuse_unk": True, "byte_fallback": True},
            normalizer={"type": "Sequence", "normalizers": [*prepend, to_sign]},
            pre_tokenizer=None,
            decoder={
                "type": "Sequence",
                "decoders": [to_space, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip],
            },
            add_bos=True,
        )

    def _merges(self) -> list[list[str]]:
        # sentencepiece joins the pair whose token has the best score
        scores = _list(self._metadata, "scores", float)
        if len(scores) != len(self.tokens):
            raise HubError(f"the GGUF file has {len(self.tokens)} tokens with {len(scores)} scores")
        normal = {
            token: score
            for token, score, kind in zip(self.tokens, scores, self.types, strict=True)
            if kind == _NORMAL
        }
        pairs = [
            (-score, -cut, cut - len(token), token)
            for token, score in normal.items()
            for cut in range(1, len(token))
            if token[:cut] in normal and token[cut:] in normal
        ]
        pairs.sort(key=lambda pair: pair[:3])
        return [[token[:-cut], token[-cut:]] for _, cut, _, token in pairs]

    def _whole(self, add_bos: bool, **parts: Any) -> dict[str, Any]:
        return {
            "version": "1.0",
            "added_tokens": self._added(),
            "post_processor": self._template(add_bos),
            **parts,
        }

    def _added(self) -> list[dict[str, Any]]:
        strips = self.kind == "llama" and self._metadata.architecture == "phi3"
        return [
            {
                "id": index,
                "content": token,
                "single_word": False,
                "lstrip": False,
                "rstrip": strips and token not in _KEEP_SPACE,
                "normalized": False,
                "special": kind != _USER_DEFINED,
            }
            for index, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) and token
        ]

    def _template(self, add_bos: bool) -> dict[str, Any] | None:
        bos, eos = self._token("bos_token_id"), self._token("eos_token_id")
        before = bos if _of(self._metadata, "add_bos_token", add_bos) else None
        after = eos if _of(self._metadata, "add_eos_token", False) else None
        added = [token for token in (before, after) if token is not None]
        if not added:
            return None
        text = {"Sequence": {"id": "A", "type_id": 0}}
        single = [_special(before), text, _special(after)]
        pair = [*single, {"Sequence": {"id": "B", "type_id": 1}}]
        ids = {token: {"id": token, "ids": [self.tokens.index(token)], "tokens": [token]} for token in added}
        return {
            "type": "TemplateProcessing",
            "single": [part for part in single if part is not None],
            "pair": [part for part in pair if part is not None],
            "special_tokens": ids,
        }

    def _token(self, key: str) -> str | None:
        index = _of(self._metadata, key)
        return self.tokens[index] if isinstance(index, int) and 0 <= index < len(self.tokens) else None


def _of(metadata: Metadata, key: str, default: Any = None) -> Any:
    return metadata.of_file(f"tokenizer.ggml.{key}", default)


def _list(metadata: Metadata, key: str, kind: type[str | int | float]) -> list[Any]:
    values = _of(metadata, key, [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise HubError(f"tokenizer.ggml.{key} of the GGUF file is not a list of {kind.__name__}")
    return values


def _special(token: str | None) -> Mapping[str, Any] | None:
    return None if token is None else {"SpecialToken": {"id": token, "type_id": 0}}


def _bpe(tokens: list[str], merges: list[list[str]]) -> dict[str, Any]:
    return {"type": "BPE", "vocab": {token: index for index, token in enumerate(tokens)}, "merges": merges}
