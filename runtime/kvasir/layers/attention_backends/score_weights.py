"""Attention scores: their cap, and the weights of the tokens that they give."""

import torch
from torch import Tensor


def cap_(scores: Tensor, softcap: float) -> Tensor:
    return scores.div_(softcap).tanh_().mul_(softcap)


def weights_of(scores: Tensor, sinks: Tensor | None) -> Tensor:
    # `sinks` have the dimensions of scores [..., queries, keys].
    if sinks is None:
        return scores.softmax(dim=-1)
    return torch.cat((scores, sinks.expand(*scores.shape[:-1], 1)), dim=-1).softmax(dim=-1)[..., :-1]
