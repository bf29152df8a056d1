"""Looks at a model before anything is started, so that a wrong one is told at once. Used by up.py and serve.py."""

from kvasir.hub.chat_template import ChatTemplate
from kvasir.hub.model import load_model_info
from kvasir.hub.source import fetch, normalise


def check_model(source: str, download_dir: str | None = None) -> bool:
    """Fetches config and tokenizer, no weights; returns whether the model can chat. Raises HubError."""
    path = fetch(normalise(source), weights=False, download_dir=download_dir)
    load_model_info(path)
    return ChatTemplate.load(path) is not None
