"""Runs the head of a model of transformers on hidden states that are there."""

import copy
from dataclasses import dataclass
from typing import Any

import transformers
from torch import Tensor, nn
from transformers.modeling_outputs import MoeModelOutputWithPast


@dataclass
class _States(MoeModelOutputWithPast):
    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)  # copies and pickles ask for methods
        # Another field of a decoder's output, which only losses and later calls use.


def base_of(model: transformers.PreTrainedModel) -> nn.Module:
    # Llama 4 names the part of a model with images.
    found: nn.Module = model.base_model if model.base_model is not model else model.model
    return found


def head_of(model: transformers.PreTrainedModel) -> transformers.PreTrainedModel:
    """Return the model with a decoder that returns its `inputs_embeds`: the head, with its scales and caps."""
    base = base_of(model)
    head = copy.copy(model)
    head._modules = {name: _returning(part) if part is base else part for name, part in model._modules.items()}
    return head


def _returning(decoder: nn.Module | None) -> nn.Module:
    assert decoder is not None
    shell = copy.copy(decoder)
    inner = decoder._modules.get("decoder")
    if inner is not None:  # some heads call this part
        shell._modules = {**decoder._modules, "decoder": _returning(inner)}

    def forward(*_: Any, inputs_embeds: Tensor, **__: Any) -> _States:
        return _States(last_hidden_state=inputs_embeds)

    shell.forward = forward
    return shell
