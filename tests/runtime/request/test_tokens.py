import subprocess
import sys
from array import array
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvasir.request.tokens import from_wire, packed, to_wire, token_array

token_lists = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def test_tokens_are_little_endian_on_the_wire() -> None:
    assert packed([1, 2**31 + 2]) == bytes([1, 0, 0, 0, 2, 0, 0, 128])


@given(token_lists, token_lists)
def test_tokens_arrive_unchanged_in_the_order_of_their_parts(first: list[int], second: list[int]) -> None:
    assert from_wire(packed(first), packed(second)).tolist() == first + second


def test_a_big_endian_machine_swaps_bytes_of_a_copy() -> None:
    tokens = token_array([1, 2])
    with patch("sys.byteorder", "big"):
        sent = to_wire(tokens)
        assert sent == bytes([0, 0, 0, 1, 0, 0, 0, 2])
        assert from_wire(sent) == tokens == array("I", [1, 2])


@pytest.mark.parametrize("token_id", [-1, 2**32])
def test_a_number_that_does_not_fit_is_rejected(token_id: int) -> None:
    with pytest.raises(OverflowError):
        packed([token_id])


def test_a_part_of_a_token_is_rejected() -> None:
    with pytest.raises(ValueError, match="multiple"):
        from_wire(b"\0\0\0\0\0")


def test_tokens_need_neither_torch_nor_numpy() -> None:
    script = "import sys, kvasir.request.tokens; print('torch' in sys.modules, 'numpy' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False", "False"]
