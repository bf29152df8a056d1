"""Checks a model before any process starts, so that a wrong one is reported at once."""

from kvasir.config.resolve import check_context
from kvasir.config.settings import ModelConfig
from kvasir.hub.chat_template import ChatTemplate
from kvasir.hub.located_model import read_model
from kvasir.hub.source import normalise
from kvasir.hub.weights import weight_files


def check_model(config: ModelConfig) -> bool:
    """Fetches config and tokenizer, no weights; returns whether the model can chat.

    Weights that are here already are checked to be whole, by their headers. Raises HubError, and ConfigError for a
    context that the model has not.
    """
    model = read_model(config)
    check_context(config.max_model_len, model.max_model_len)
    if not normalise(config.source).startswith("hf://"):
        weight_files(model.path)
    return ChatTemplate.load(model.tokenizer_path) is not None
