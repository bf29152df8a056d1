"""Counts the small changes of the code that no test finds: `python -m tools.mutation [MODULE...]`.

mutmut changes one operator, number, string or argument at a time and runs the tests that reach the function. If all
of them pass, the change is a survivor: it points at behaviour without a test, or at code without an effect. All of
this happens in copies of the tree, below `.mutation/`. docs/design/mutation.md explains the result.
"""

import argparse
import difflib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
COPIES: Final = ROOT / ".mutation"
# Exit statuses of the tests. An endless test has found the change too.
KILLED: Final = {1: "killed", 3: "killed", 24: "timeout", -24: "timeout", 152: "timeout"}
# mutmut's status of a change that no test reaches.
UNTESTED: Final = 33

PYPROJECT: Final = """\
[tool.pytest.ini_options]
addopts = ["--import-mode=importlib"]
pythonpath = ["tests", "."]
asyncio_mode = "auto"
asyncio_default_fixture_loop_scope = "function"

[tool.mutmut]
source_paths = ["src"]
only_mutate = {only_mutate}
also_copy = ["conftest.py", "crds", "manifests"]
pytest_add_cli_args_test_selection = {tests}
process_isolation = "forkserver"
use_setproctitle = false
use_git_change_detection = false
timeout_constant = 3.0
timeout_multiplier = 3.0
"""

# Quick tests first; property tests with few fixed examples and without shrinking.
CONFTEST: Final = """\
from hypothesis import Phase, settings

settings.register_profile("mutation", derandomize=True, database=None, phases=[Phase.explicit, Phase.generate])
settings.load_profile("mutation")

SETTINGS = "_hypothesis_internal_use_settings"


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: hasattr(item.function, SETTINGS))
    for item in items:
        if known := getattr(item.function, SETTINGS, None):
            setattr(item.function, SETTINGS, settings(known, max_examples=min(known.max_examples, {examples})))
"""

# The first part of `mutmut run`: it makes the changes, and runs no test.
GENERATE: Final = """\
from mutmut import __main__ as mutmut
from mutmut.mutation.trampoline import set_mutant_under_test

if __name__ == "__main__":
    set_mutant_under_test("mutant_generation")
    mutmut.makedirs("mutants", exist_ok=True)
    mutmut.copy_src_dir()
    mutmut.copy_also_copy_files()
    mutmut.setup_source_paths()
    mutmut.create_mutants(1)
"""


@dataclass(frozen=True)
class Module:
    """Files to change, below the packages' folders, and the tests that cover them."""

    sources: Sequence[str]
    tests: Sequence[str]


ENGINE_TESTS: Final = [
    "tests/runtime/engine/kv",
    "tests/runtime/engine/scheduling",
    "tests/runtime/engine/test_core.py",
]
SAMPLING_TESTS: Final = [
    "tests/runtime/sampling",
    "tests/runtime/worker/test_sampling_inputs.py",
    "tests/runtime/worker/test_sampling_rows.py",
]
MODULES: Final[Mapping[str, Module]] = {
    "scheduler": Module(["kvasir/engine/scheduling/*.py"], ENGINE_TESTS),
    "block_pool": Module(["kvasir/engine/kv/block_pool.py"], ENGINE_TESTS),
    "prefix_cache": Module(
        [f"kvasir/engine/kv/{name}.py" for name in ("group_rule", "kv_manager", "prefix_cache")], ENGINE_TESTS
    ),
    "stop_strings": Module(
        ["kvasir/client/text/stop_strings.py"], ["tests/runtime/client/text/test_stop_strings.py"]
    ),
    "detokenizer": Module(
        ["kvasir/client/text/detokenizer.py", "kvasir/client/text/token_bytes.py"],
        ["tests/runtime/client/text/test_detokenizer.py", "tests/runtime/client/text/test_token_bytes.py"],
    ),
    "sampler": Module(["kvasir/sampling/*.py"], SAMPLING_TESTS),
    "plan": Module(["kvasir_operator/plan/*.py"], ["tests/operator/plan", "tests/operator/test_upgrades.py"]),
}


@dataclass(frozen=True)
class Mutant:
    file: str
    function: str
    result: str
    removed: str
    added: str

    @property
    def survived(self) -> bool:
        return self.result not in KILLED.values()

    def __str__(self) -> str:
        function = re.sub("^x[_ǁ]", "", self.function).replace("ǁ", ".")
        return f"{self.file}: {function} ({self.result})\n    - {self.removed}\n    + {self.added}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help=f"one of {', '.join(MODULES)}; default: all")
    parser.add_argument("--sample", type=int, metavar="N", help="try N changes of each module, chosen at random")
    parser.add_argument("--seed", default="0", help="chooses another sample (default: 0)")
    parser.add_argument(
        "--survivors", action="store_true", help="try the survivors of the last run again, and new code"
    )
    parser.add_argument("--examples", type=int, default=50, help="examples of each property test (default: 50)")
    args = parser.parse_args()
    unknown = [name for name in args.modules if name not in MODULES]
    if unknown:
        parser.error(f"unknown module {unknown[0]}; choose from {', '.join(MODULES)}")
    mutants: list[Mutant] = []
    for name in args.modules or MODULES:
        make_copy(name, examples=args.examples, keep=args.survivors)
        chosen = choose(statuses(name), args.sample, args.seed)
        try_mutants(name, [mutant for mutant in chosen if statuses(name)[mutant] not in KILLED])
        mutants += results(name, chosen)
    report(mutants)
    return 0


def make_copy(name: str, *, examples: int, keep: bool) -> None:
    """Copy the tree and make the changes; `keep` the last results of unchanged functions."""
    copy, module = COPIES / name, MODULES[name]
    if not keep:
        shutil.rmtree(copy, ignore_errors=True)
    for path in ("tests", "mutants/tests", "mutants/mutmut-stats.json"):  # a test may have new code or a new name
        remove(copy / path)
    for folder in ("runtime", "operator"):
        for package in (ROOT / folder).iterdir():
            if package.is_dir():
                synchronize(package, copy / "src" / package.name)
    for folder in ("tests", "crds", "manifests"):
        synchronize(ROOT / folder, copy / folder)
    sources = [f"src/{source}" for source in module.sources]
    (copy / "pyproject.toml").write_text(
        PYPROJECT.format(only_mutate=json.dumps(sources), tests=json.dumps(list(module.tests)))
    )
    (copy / "conftest.py").write_text(CONFTEST.format(examples=examples))
    (copy / "generate.py").write_text(GENERATE)
    run_in(copy, "generate.py")


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def synchronize(source: Path, target: Path) -> None:
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def run_in(copy: Path, *arguments: str) -> None:
    """Run Python in a copy of the tree. The output goes into a file, and is printed on failure."""
    log = copy / "output.log"
    with log.open("w") as output:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *arguments]
        status = subprocess.run(
            command, cwd=copy, env=environment, stdout=output, stderr=subprocess.STDOUT
        ).returncode
    if status:
        sys.exit(f"{log.read_text()}\n{' '.join(command[:4])} failed in {copy} with status {status}")


def statuses(name: str) -> dict[str, int | None]:
    """Return the tests' exit status for each change of a module; None: not tried yet."""
    return {mutant: status for path in meta_files(name) for mutant, status in read_statuses(path).items()}


def meta_files(name: str) -> list[Path]:
    return sorted((COPIES / name / "mutants").rglob("*.meta"))


def read_statuses(path: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = json.loads(path.read_text())["exit_code_by_key"]
    return found


def choose(names: Mapping[str, object], count: int | None, seed: str) -> list[str]:
    """Return `count` of the names, the same for the same seed; a new name does not change the others."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count]


def try_mutants(name: str, chosen: Sequence[str]) -> None:
    print(f"{name}: trying {len(chosen)} changes", flush=True)
    if chosen:
        run_in(COPIES / name, "-m", "mutmut", "run", "--max-children", "1", *chosen)


def results(name: str, chosen: Sequence[str]) -> Iterator[Mutant]:
    """Yield the result of each chosen change; mutmut keeps all versions of a function in a copy of its file."""
    mutated, wanted = COPIES / name / "mutants", set(chosen)
    for path in meta_files(name):
        file = path.relative_to(mutated / "src").with_suffix("")
        lines = (mutated / "src" / file).read_text().splitlines()
        spans = json.loads(path.with_name(f"{file.name}.spans").read_text())["spans"]
        for mutant, status in read_statuses(path).items():
            if mutant in wanted:
                function, number = mutant.rpartition(".")[2].split("__mutmut_")
                before, after = (version(lines, spans[f"{function}__mutmut_{n}"]) for n in ("orig", number))
                yield Mutant(str(file), function, result_of(status), *difference(before, after))


def version(lines: Sequence[str], bounds: Sequence[int]) -> list[str]:
    """Return the body of one version of a function; `bounds` are its first and last line, counted from 1."""
    return [re.sub(r"__mutmut_\w+", "", line).strip() for line in lines[bounds[0] - 1 : bounds[1]]]


def result_of(status: int | None) -> str:
    if status is None:
        return "not tried"
    return KILLED.get(status, "no tests" if status == UNTESTED else "survived")


def difference(before: Sequence[str], after: Sequence[str]) -> tuple[str, str]:
    changes = [line for line in difflib.ndiff(before, after) if line[0] in "+-"]
    removed, added = (" ".join(line[2:] for line in changes if line[0] == sign) for sign in "-+")
    return removed, added


def report(mutants: Sequence[Mutant]) -> None:
    print()
    for mutant in mutants:
        if mutant.survived:
            print(mutant)
    print(f"\n{'file':44} {'mutants':>8} {'killed':>8} {'survived':>8}")
    survived = Counter(mutant.file for mutant in mutants if mutant.survived)
    for file, count in Counter(mutant.file for mutant in mutants).items():
        print(f"{file:44} {count:8} {count - survived[file]:8} {survived[file]:8}")
    print(f"{'all':44} {len(mutants):8} {len(mutants) - survived.total():8} {survived.total():8}")


if __name__ == "__main__":
    sys.exit(main())
