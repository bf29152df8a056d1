"""Oracle: a drafter that has each output of an earlier run, and is wrong from a random place on."""

import random
from collections.abc import Callable, Sequence

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.step_drafts import Drafter


class Oracle(Drafter):
    def __init__(self, output_of: Callable[[EngineRequest], Sequence[int]]) -> None:
        # `output_of`: all output tokens of a request; none if they are not known
        self._output_of = output_of
        self._number = random.Random(3)
        self.accepted = {True: 0, False: 0}
        # by whether the request has a grammar
        self.num_rejected = 0
        self.num_preempted = 0

    def wants(self, request: EngineRequest) -> bool:
        return self._number.random() < 0.7

    def propose(self, request: EngineRequest, most: int) -> list[int]:
        rest = self._output_of(request)[request.num_output_tokens :]
        right = self._number.randrange(most + 2)
        return [token if place < right else self._number.randrange(256) for place, token in enumerate(rest[:most])]

    def verified(self, request: EngineRequest, drafted: int, accepted: int) -> None:
        self.accepted[request.guide is not None] += accepted
        self.num_rejected += drafted - accepted

    def ended(self, request: EngineRequest) -> None:
        self.num_preempted += request.num_preemptions > 0
