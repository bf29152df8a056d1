import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import kvasir_contract

_LOADED = """
import importlib, json, pkgutil, sys
before = set(sys.modules)
import kvasir_contract
for module in pkgutil.iter_modules(kvasir_contract.__path__, "kvasir_contract."):
    importlib.import_module(module.name)
print(json.dumps(sorted({name.partition(".")[0] for name in set(sys.modules) - before})))
"""


def test_contract_loads_the_standard_library_only() -> None:
    path = str(Path(kvasir_contract.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", _LOADED], env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True
    )
    loaded = set(json.loads(done.stdout))
    assert loaded - sys.stdlib_module_names == {"kvasir_contract"}


def test_contract_names_its_modules_in_reading_order() -> None:
    assert kvasir_contract.__doc__ is not None
    for module in pkgutil.iter_modules(kvasir_contract.__path__):
        assert f"`{module.name}`" in kvasir_contract.__doc__
