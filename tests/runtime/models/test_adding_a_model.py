"""The example of docs/design/adding-a-model.md is a module of the registry, which the tests of all models cover."""

import re
from pathlib import Path

from kvasir.models.architectures import seed_oss

PAGE = Path(__file__).resolve().parents[3] / "docs/design/adding-a-model.md"


def test_the_example_is_the_module_of_seed_oss() -> None:
    (code,) = re.findall(r"^```python\n(\"\"\"Seed.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert code == Path(seed_oss.__file__).read_text()
