from dataclasses import dataclass

import torch
from torch import Tensor

from kvasir.layers.parameter import Placement
from kvasir.models.forward_batch import Intermediate
from kvasir.parallel.group import Alone, Group, Sending
from kvasir.parallel.parallel_state import SINGLE, ParallelState
from kvasir.worker.stage_link import StageLink
from runtime.parallel.thread_group import ThreadGroup, run_ranks

HIDDEN = 3


def link_of(pipeline: Group) -> StageLink:
    return StageLink(HIDDEN, Placement(torch.device("cpu"), torch.float32, ParallelState(pipeline=pipeline)))


def test_each_stage_gets_the_steps_in_order() -> None:
    def work(group: ThreadGroup) -> list[list[float]]:
        link, results = link_of(group), []
        for step in range(4):
            arrived = link.receive(num_tokens=step + 1)
            x = torch.full((step + 1, HIDDEN), float(step)) if arrived is None else arrived.residual
            assert x.shape == (step + 1, HIDDEN)
            x += 10
            if group.rank < group.size - 1:
                link.send(Intermediate(x))
            else:
                results.append(x[:, 0].tolist())
        return results

    assert run_ranks(3, work)[2] == [[30.0], [31.0] * 2, [32.0] * 3, [33.0] * 4]


class Recorded(Alone):
    """The first of two stages; it records what happens to its sendings."""

    size = 2

    def __init__(self) -> None:
        self.events: list[str] = []

    def send(self, x: Tensor, target: int) -> Sending:
        name = f"{x.item():g} to {target}"
        self.events.append(f"send {name}")
        return _Recorded(self.events, f"wait for {name}")


@dataclass
class _Recorded:
    events: list[str]
    name: str

    def wait(self) -> None:
        self.events.append(self.name)


def test_a_stage_goes_on_until_its_next_result_is_ready() -> None:
    group = Recorded()
    link = link_of(group)
    for step in range(3):
        link.send(Intermediate(torch.full((1, 1), float(step))))
    assert group.events == ["send 0 to 1", "wait for 0 to 1", "send 1 to 1", "wait for 1 to 1", "send 2 to 1"]


def test_nothing_arrives_without_a_pipeline() -> None:
    assert link_of(SINGLE.pipeline).receive(5) is None
