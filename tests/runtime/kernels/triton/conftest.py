import importlib.util
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

# Builds of torch without CUDA come without triton; the work lists do not need it.
_NEED_TRITON = ["test_fused_kernels.py", "test_kv_write.py", "test_paged_attention.py"]
collect_ignore = [] if importlib.util.find_spec("triton") else _NEED_TRITON


@pytest.fixture
def nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter rounds to the nearest bfloat16, as devices do."""
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def rounded(numbers: npt.NDArray[Any], source: Any, target: Any, mode: Any) -> npt.NDArray[Any]:
        if str(target) != "bf16" or str(source) != "fp32":
            return convert(numbers, source, target, mode)  # type: ignore[no-any-return]
        bits = torch.from_numpy(numbers.astype(np.float32)).bfloat16().view(torch.int16)
        return bits.numpy().view(np.uint16)

    monkeypatch.setattr(interpreter, "_convert_float", rounded)
