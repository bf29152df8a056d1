"""What docs/design/adding-a-model.md asks of a new model is true of all."""

import re
from pathlib import Path

from kvasir.models.architectures import seed_oss
from kvasir.models.registry import ARCHITECTURES
from runtime.models.mixtures import MIXTURES
from runtime.models.tiny import FAMILIES, MODELS

PAGE = Path(__file__).resolve().parents[3] / "docs/design/adding-a-model.md"


def test_the_example_is_the_module_of_seed_oss() -> None:
    (code,) = re.findall(r"^```python\n(\"\"\"Seed.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert code == Path(seed_oss.__file__).read_text()


def test_every_architecture_has_a_tiny_model() -> None:
    tiny = {**MODELS, **FAMILIES, **MIXTURES}
    assert {type(build()).__name__ for build in tiny.values()} == set(ARCHITECTURES)
