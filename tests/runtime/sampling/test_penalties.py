import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvasir.sampling.penalties import TokenCounts

TOKENS = st.lists(st.integers(0, 30), max_size=60)


@given(prompt=TOKENS, output=TOKENS, known=st.integers(0, 60), leap=st.integers(1, 5), with_prompt=st.booleans())
@settings(deadline=None)
def test_counts_are_those_of_the_output_whenever_counting_began(
    prompt: list[int], output: list[int], known: int, leap: int, with_prompt: bool
) -> None:
    """`known` output tokens are there when the request takes its row; the others come `leap` at a time."""
    counts = TokenCounts(np.array(prompt + output[:known], np.int32), len(prompt), with_prompt)
    for length in (*range(min(known, len(output)), len(output), leap), len(output)):
        ids, numbers = counts.after(np.array(prompt + output[:length], np.int32))
        expected = set(output[:length]) | (set(prompt) if with_prompt else set())
        assert len(ids) == len(expected)
        assert dict(zip(ids.tolist(), numbers.tolist(), strict=True)) == {
            token: output[:length].count(token) for token in expected
        }
