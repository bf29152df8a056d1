"""BadWords: the tokens that would complete a bad word in the output (not the prompt, as in vLLM)."""

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from kvasir.sampling.penalties import Ints, Tokens


class BadWords:
    def __init__(self, words: Iterable[Sequence[int]]) -> None:
        alone: set[int] = set()
        # by the token before the last, to look at few words in a step
        self._longer: dict[int, list[tuple[Tokens, int]]] = {}
        for word in words:
            if len(word) == 1:
                alone.add(word[0])
            else:
                beginning = np.array(word[:-1], np.int32)
                self._longer.setdefault(word[-2], []).append((beginning, word[-1]))
        self._alone = sorted(alone)

    @property
    def depend_on_output(self) -> bool:
        return bool(self._longer)

    def completing(self, output: Tokens) -> Ints:
        longer = self._longer.get(int(output[-1]), ()) if len(output) else ()
        found = [last for beginning, last in longer if _ends_with(output, beginning)]
        return np.array(self._alone + found, np.int64)


def _ends_with(output: Tokens, beginning: npt.NDArray[np.int32]) -> bool:
    return bool(np.array_equal(output[-len(beginning) :], beginning))
