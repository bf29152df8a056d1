import json
from pathlib import Path

import pytest
from tools.mutation import MODULES, ROOT, choose, report, results, statuses

from tools import mutation

MUTATED = """\
def x_double__mutmut_orig(n):
    return n * 2
def x_double__mutmut_1(n):
    return n / 2
def x_double__mutmut_2(n):
    return n * 3
"""


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the files that mutmut leaves behind; return the name of the module."""
    monkeypatch.setattr(mutation, "COPIES", tmp_path)
    source = tmp_path / "pool" / "mutants" / "src" / "a" / "pool.py"
    source.parent.mkdir(parents=True)
    source.write_text(MUTATED)
    spans = {f"x_double__mutmut_{name}": [line, line + 1] for name, line in (("orig", 1), ("1", 3), ("2", 5))}
    source.with_name("pool.py.spans").write_text(json.dumps({"spans": spans}))
    found = {"a.pool.x_double__mutmut_1": 1, "a.pool.x_double__mutmut_2": 0}
    source.with_name("pool.py.meta").write_text(json.dumps({"exit_code_by_key": found}))
    return "pool"


@pytest.mark.parametrize("name", MODULES)
def test_mutation_modules_name_files_and_tests_that_exist(name: str) -> None:
    for source in MODULES[name].sources:
        assert [*ROOT.glob(f"runtime/{source}"), *ROOT.glob(f"operator/{source}")], source
    for path in MODULES[name].tests:
        assert (ROOT / path).exists(), path


def test_choose_returns_the_same_sample_for_the_same_seed() -> None:
    names = [f"change {number}" for number in range(100)]
    sample = choose(dict.fromkeys(names), 10, "0")
    assert len(set(sample)) == 10
    assert choose(dict.fromkeys(reversed(names)), 10, "0") == sample
    assert choose(dict.fromkeys(names), 10, "1") != sample
    assert set(choose(dict.fromkeys(names), None, "0")) == set(names)


def test_choose_keeps_most_of_a_sample_if_names_are_added() -> None:
    names = [f"change {number}" for number in range(100)]
    sample = choose(dict.fromkeys(names), 50, "0")
    assert len(set(sample) & set(choose(dict.fromkeys([*names, "new"]), 50, "0"))) >= 49


def test_results_show_the_changed_line_of_each_chosen_change(pool: str) -> None:
    killed, survived = results(pool, list(statuses(pool)))
    assert (killed.result, killed.survived) == ("killed", False)
    assert (survived.result, survived.survived) == ("survived", True)
    assert (survived.removed, survived.added) == ("return n * 2", "return n * 3")
    assert [change.added for change in results(pool, ["a.pool.x_double__mutmut_1"])] == ["return n / 2"]


def test_report_lists_survivors_and_counts_per_file(pool: str, capsys: pytest.CaptureFixture[str]) -> None:
    report(list(results(pool, list(statuses(pool)))))
    printed = capsys.readouterr().out
    assert "a/pool.py: double (survived)\n    - return n * 2\n    + return n * 3\n" in printed
    assert [line.split() for line in printed.splitlines()[-2:]] == [
        ["a/pool.py", "2", "1", "1"],
        ["all", "2", "1", "1"],
    ]
