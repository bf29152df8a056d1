"""LateMasks: makes the masks of scheduled steps and sends them while the executor computes.

A mask depends on all tokens before the sampled one, so it may have to wait for a step in flight.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvasir.engine.engine_request import EngineRequest
from kvasir.engine.scheduling.step_results import StepRows
from kvasir.worker.step import LateInput, StepInput

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

log = logging.getLogger(__name__)

_ALL: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _MaskedStep:
    number: int
    # each masked row's request, its number of tokens when the mask is due, and its drafts
    rows: list[tuple[EngineRequest, int, tuple[int, ...]]]

    @property
    def is_due(self) -> bool:
        return all(request.status.finished or request.num_tokens >= due for request, due, _ in self.rows)


class LateMasks:
    def __init__(
        self,
        vocab_size: int,
        send: Callable[[LateInput], None],
        fail: Callable[[EngineRequest, Exception], None],
    ) -> None:
        self._num_words = -(-vocab_size // 32)
        self._send = send
        self._fail = fail
        self._steps: deque[_MaskedStep] = deque()  # submitted, without their masks, oldest first

    def expect(self, step: StepInput, rows: StepRows) -> None:
        masked = [(rows[place][0], step.scheduled[place].draft_token_ids) for place in step.masked]
        due = [
            (request, request.num_tokens + request.num_pending - 1 - len(drafts), drafts)
            for request, drafts in masked
        ]
        self._steps.append(_MaskedStep(step.number, due))

    def supply(self) -> None:
        # The masks of the oldest step in flight are always due.
        if not self._steps:
            return
        import numpy as np  # here, because an engine sends Hello before its slow imports

        while self._steps and self._steps[0].is_due:
            step = self._steps.popleft()
            count = sum(1 + len(drafts) for _, _, drafts in step.rows)
            masks = np.empty((count, self._num_words), np.uint32)  # [N, V / 32]
            at = 0
            for request, _, drafts in step.rows:
                self._fill(masks[at], request)
                if drafts:
                    _fill_along(masks[at + 1 : at + 1 + len(drafts)], request, drafts)
                at += 1 + len(drafts)
            self._send(LateInput(step.number, masks.tobytes()))

    def check_idle(self) -> None:
        assert not self._steps, f"step {self._steps[0].number} never got its masks"

    def _fill(self, mask: "npt.NDArray[np.uint32]", request: EngineRequest) -> None:
        # mask: [V / 32]; all ones if the token will be dropped
        guide = request.guide
        if request.status.finished or guide is None:
            mask[:] = _ALL
            return
        try:
            guide.fill(mask)
        except Exception as error:
            mask[:] = _ALL
            self._fail(request, error)


def _fill_along(masks: "npt.NDArray[np.uint32]", request: EngineRequest, drafts: tuple[int, ...]) -> None:
    # masks: [drafts, V / 32], each after one draft more
    masks[:] = _ALL
    if request.status.finished or request.guide is None:
        return
    try:
        guide = request.guide.copy()
        for mask, draft in zip(masks, drafts, strict=True):
            guide.accept((draft,))
            if guide.is_complete:
                return  # the token after it is dropped
            guide.fill(mask)
    except Exception:
        # A wrong draft must not end the request. After a right one, its guide fails in the update.
        log.debug("no masks for the drafts of request %s", request.request_id, exc_info=True)
