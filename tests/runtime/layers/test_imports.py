"""A process without a GPU does not import Triton: it takes a second."""

import subprocess
import sys

CODE = """
import sys
import torch
import torch.nn.functional as F
from kvasir.layers.activation import ACTIVATIONS, gated
from kvasir.layers.attention import HeadShape
from kvasir.layers.attention_backends.choose_backend import choose_backend
from kvasir.layers.kv import FullAttention
from kvasir.layers.moe.experts import Experts
from kvasir.layers.norm import RMSNorm
from kvasir.layers.parameter import Placement
from kvasir.worker.kv_memory.cache_memory import block_shape
cpu = Placement(torch.device("cpu"), torch.float32)
heads = HeadShape(4, 2, 16)
choose_backend(FullAttention(block_shape(heads, 16, torch.float32)), heads, cpu)
assert "triton" not in sys.modules, "attention"
assert Experts(16, 8, F.silu, 4, cpu)._kernels is None
assert "triton" not in sys.modules, "experts"
norm = RMSNorm(64, 1e-5, cpu)
with torch.inference_mode():
    gated(norm(torch.ones(2, 64), torch.ones(2, 64)), ACTIVATIONS["silu"])
assert "triton" not in sys.modules, "norms and activations"
"""


def test_triton_is_imported_for_no_cpu() -> None:
    ended = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
