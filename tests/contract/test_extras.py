import re
import tomllib
from pathlib import Path

from kvasir_contract.extras import DISTRIBUTION, install_extra

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_extras_of_the_distribution_are_installed_by_its_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert install_extra("otel", "another") == f"pip install '{DISTRIBUTION}[otel]' another"


def test_no_text_names_an_extra_of_another_distribution() -> None:
    places = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "runtime" / "kvasir").rglob("*.py")]
    named = {
        (str(path.relative_to(ROOT)), *found)
        for path in places
        for found in re.findall(r"(kvasir[\w-]*)\[([a-z][a-z,]*)\]", path.read_text(encoding="utf-8"))
        if set(found[1].split(",")) & PROJECT["optional-dependencies"].keys()
    }
    assert named
    assert {entry for entry in named if entry[1] != DISTRIBUTION} == set()
