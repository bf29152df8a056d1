import importlib.util
from collections.abc import Iterator

import pytest

# Builds of torch without CUDA come without triton; the work lists do not need it.
_NEED_TRITON = ["test_fp8_cache.py", "test_fused_kernels.py", "test_kv_write.py", "test_paged_attention.py"]
collect_ignore = [] if importlib.util.find_spec("triton") else _NEED_TRITON


@pytest.fixture
def nearest() -> Iterator[None]:
    """Triton's interpreter rounds to the nearest bfloat16 and float8_e4m3fn, as devices do."""
    from bench.gpu.checks.interpreted import rounding_to_nearest

    with rounding_to_nearest():
        yield
