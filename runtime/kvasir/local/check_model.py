"""Checks a model before any process starts, so that a wrong one is reported at once."""

from kvasir.config.resolve import check_context
from kvasir.hub.chat_template import ChatTemplate
from kvasir.hub.model_info import load_model_info
from kvasir.hub.source import fetch, normalise
from kvasir.hub.weights import weight_files


def check_model(source: str, download_dir: str | None = None, max_model_len: int | None = None) -> bool:
    """Fetches config and tokenizer, no weights; returns whether the model can chat.

    Weights that are here already are checked to be whole, by their headers. Raises HubError, and ConfigError for a
    context that the model has not.
    """
    source = normalise(source)
    path = fetch(source, weights=False, download_dir=download_dir)
    model = load_model_info(path)
    check_context(max_model_len, model.max_model_len)
    if not source.startswith("hf://"):
        weight_files(path)
    return ChatTemplate.load(path) is not None
