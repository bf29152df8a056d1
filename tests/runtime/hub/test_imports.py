"""What the hub pulls into a frontend's process."""

import subprocess
import sys

NAMES = ("source", "model_info", "tokenizer", "chat_templates.chat_template", "weights")
MODULES = ", ".join(f"kvasir.hub.{name}" for name in NAMES)


def test_the_hub_imports_no_heavy_library_early() -> None:
    script = f"""
import sys
import {MODULES}
heavy = {{"torch", "transformers", "numpy", "safetensors"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
assert "huggingface_hub" not in sys.modules
import kvasir.hub.huggingface
assert not heavy & set(sys.modules), heavy & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
