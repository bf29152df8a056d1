"""Random adapters made by PEFT, and its unmerged logits as the reference."""

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from runtime.models.tiny import load_reference


def save_adapter(model: Path, path: Path, seed: int, **changes: Any) -> Path:
    torch.manual_seed(seed)
    fields: dict[str, Any] = {"r": 4, "lora_alpha": 12, "target_modules": "all-linear", "init_lora_weights": False}
    with warnings.catch_warnings(action="ignore"):  # of GPT-2's fan_in_fan_out
        adapted = get_peft_model(load_reference(model, torch.float32), LoraConfig(**fields | changes))
        adapted.save_pretrained(str(path))
    return path


def load_adapted(model: Path, adapters: Sequence[Path]) -> PeftModel:
    """Return a model with these adapters, by the names of their directories; none is active."""
    reference = load_reference(model, torch.float32)
    with warnings.catch_warnings(action="ignore"):
        adapted = PeftModel.from_pretrained(reference, adapters[0], adapter_name=adapters[0].name)
        for path in adapters[1:]:
            adapted.load_adapter(path, adapter_name=path.name)
    adapted.eval()
    return adapted


@torch.inference_mode()
def adapted_logits(model: PeftModel, adapter: str, prompt: list[int], outputs: list[int]) -> torch.Tensor:
    """[len(outputs), vocabulary]; `adapter` "": of the model itself."""
    token_ids = torch.tensor([prompt + outputs])
    if adapter:
        model.set_adapter(adapter)
    with nullcontext() if adapter else model.disable_adapter():
        logits: torch.Tensor = model(token_ids).logits
    return logits[0, len(prompt) - 1 : -1].float()
