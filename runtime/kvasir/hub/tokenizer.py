"""Convert text to tokens with the `tokenizers` library, with the ids of transformers' AutoTokenizer.

transformers rebuilds parts of some tokenizers from code. Here tokenizer.json is used unchanged.
"""

from collections.abc import Sequence
from pathlib import Path

import tokenizers

from kvasir.hub import tokenizer_files
from kvasir.hub.convert_tokenizer import tokenizer_directory
from kvasir.hub.hub_errors import HubError
from kvasir.hub.tokenizer_files import TokenizerConfig, read_tokenizer_config


class Tokenizer:
    # thread-safe
    def __init__(self, backend: tokenizers.Tokenizer, bos_token: str | None, eos_token: str | None) -> None:
        self.backend = backend
        self.bos_token = bos_token
        self.eos_token = eos_token
        # control tokens, which stand for no text
        self.special_ids = frozenset(
            token_id for token_id, token in backend.get_added_tokens_decoder().items() if token.special
        )
        # in characters
        self.longest_token = max(map(len, backend.get_vocab()), default=1)

    def encode(self, text: str, add_special_tokens: bool, keep: int | None = None) -> list[int]:
        """Return the ids of a text. Special tokens in the text are always recognised.

        `add_special_tokens`: add those that the model expects around a text. `keep`: keep only the last tokens of
        the text, between the added ones.
        """
        encoding = self.backend.encode(text, add_special_tokens=add_special_tokens)
        ids = encoding.ids
        if keep is None or len(ids) <= keep:
            return ids
        added = encoding.special_tokens_mask
        head = added.index(0) if 0 in added else 0
        tail = added[::-1].index(0) if 0 in added else 0
        if head + tail >= keep:
            return ids[-keep:]
        end = len(ids) - tail
        return ids[:head] + ids[end - (keep - head - tail) : end] + ids[end:]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return self.backend.decode(ids, skip_special_tokens=skip_special_tokens)


def load_tokenizer(path: Path) -> Tokenizer:
    """Raises HubError."""
    path = tokenizer_directory(path)
    file = path / "tokenizer.json"
    config = read_tokenizer_config(path)
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower class
        raise HubError(
            f"{file} is not a tokenizer that the tokenizers library reads ({error}): download it again"
        ) from None
    # truncation and padding are for training
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = bool(config.values.get("split_special_tokens", False))
    _add_tokens(backend, config)
    special = config.special_tokens
    return Tokenizer(backend, special.get("bos_token"), special.get("eos_token"))


def _add_tokens(backend: tokenizers.Tokenizer, config: TokenizerConfig) -> None:
    # tokenizer_config.json may have tokens that tokenizer.json lacks or flags differently
    known = list(backend.get_added_tokens_decoder().values())
    named = {token.content for token in config.named.values()}
    new = [token for token in map(_added_token, config.added) if token not in known]
    for token in new:
        token.special = token.special or token.content in named
    contents = {token.content for token in known + new}
    for special in (*config.named.values(), *config.extra):
        if special.content not in contents:
            contents.add(special.content)
            new.append(_added_token(special, special=True))
    backend.add_tokens(new)


def _added_token(token: tokenizer_files.AddedToken, **flags: bool) -> tokenizers.AddedToken:
    return tokenizers.AddedToken(token.content, **{**token.flags, **flags})
