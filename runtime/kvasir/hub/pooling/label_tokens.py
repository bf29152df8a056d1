"""LabelTokens: a reranker that answers with a word, whose logits are its scores.

They are named by vLLM's keys in config.json (or --hf-overrides), or by the files of sentence-transformers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvasir.hub.convert_tokenizer import tokenizer_directory
from kvasir.hub.hub_errors import HubError
from kvasir.hub.reading import read_json
from kvasir.hub.tokenizer_files import token_id_of

TOKENS_KEY: Final = "classifier_from_token"
METHOD_KEY: Final = "method"
QWEN3_KEY: Final = "is_original_qwen3_reranker"
_DIFFERENCE: Final = "from_2_way_softmax"
_EACH: Final = "no_post_processing"


@dataclass(frozen=True)
class LabelTokens:
    ids: tuple[int, ...]
    names: tuple[str, ...]
    # Of two, [no, yes]: the score is logit(yes) - logit(no).
    is_difference: bool

    @property
    def labels(self) -> tuple[str, ...]:
        return self.names[1:] if self.is_difference else self.names


def tokens_of_config(config: Mapping[str, Any], tokenizer: Path) -> LabelTokens | None:
    """Raises HubError."""
    names, method = config.get(TOKENS_KEY), config.get(METHOD_KEY)
    if names is None:
        return None
    if not isinstance(names, list) or not names or not all(isinstance(each, str) for each in names):
        raise HubError(f'{TOKENS_KEY} is {names!r}, it must be a list of tokens such as ["no", "yes"]')
    if method is None and config.get(QWEN3_KEY) is True:
        method = _DIFFERENCE
    if method not in (_DIFFERENCE, _EACH) or (method == _DIFFERENCE and len(names) != 2):
        raise HubError(
            f"{METHOD_KEY} is {method!r} for the tokens {names}: give {_DIFFERENCE!r} for two tokens, the score of "
            f"the second against the first, or {_EACH!r} for a score of each token"
        )
    directory = tokenizer_directory(tokenizer)
    ids = []
    for name in names:
        token_id = token_id_of(directory, name)
        if token_id is None:
            raise HubError(f"{TOKENS_KEY}: the tokenizer has no token {name!r}")
        ids.append(token_id)
    return LabelTokens(tuple(ids), tuple(names), method == _DIFFERENCE)


def tokens_of_module(file: Path) -> LabelTokens:
    """Return the tokens of a LogitScore of sentence-transformers. Raises HubError."""
    config = read_json(file)
    yes, no = config.get("true_token_id"), config.get("false_token_id")
    if type(yes) is not int or (no is not None and type(no) is not int):
        raise HubError(f"{file}: true_token_id and false_token_id must be ids of tokens")
    if no is None:
        return LabelTokens((yes,), ("LABEL_0",), is_difference=False)
    return LabelTokens((no, yes), ("LABEL_0", "LABEL_1"), is_difference=True)
