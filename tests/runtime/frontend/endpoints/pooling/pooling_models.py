"""Frontends of the demo model served for vectors or for scores, with a scripted engine."""

import json
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from kvasir.config.settings import ModelConfig
from kvasir.hub.source import fetch
from runtime.frontend.harness import MODEL, Frontend, running_frontend


def embedding_frontend(**settings: Any) -> AbstractAsyncContextManager[Frontend]:
    overrides = settings.pop("overrides", "{}")
    config = ModelConfig(source="demo://", served_model_name=(MODEL,), task="embed", hf_overrides=overrides)
    return running_frontend(model=config, **settings)


def scoring_frontend(folder: Path, labels: list[str], **settings: Any) -> AbstractAsyncContextManager[Frontend]:
    path = folder / "scores"
    shutil.copytree(fetch("demo://", weights=False), path)
    config = json.loads((path / "config.json").read_text())
    architecture = settings.pop("architecture", "LlamaForSequenceClassification")
    changes = {"architectures": [architecture], "id2label": dict(enumerate(labels))}
    (path / "config.json").write_text(json.dumps(config | changes))
    model = ModelConfig(source=f"file://{path}", served_model_name=(MODEL,))
    return running_frontend(model=model, **settings)
