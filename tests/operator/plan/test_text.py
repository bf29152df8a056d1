from typing import Any

import pytest

from kvasir_operator.cluster.kinds import SERVICE
from kvasir_operator.observe.observed import ChildObject, Ownership
from kvasir_operator.plan.applies import Apply
from kvasir_operator.plan.text import MAX_CHANGES, changed_fields, describe, status_lines


@pytest.mark.parametrize(
    ("wanted", "found", "changes"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),  # a field of another client
        ({"a": {"b": 1}}, {"a": {"b": 2}}, ["a.b: 2 → 1"]),
        ({"a": 1}, {}, ["a: (not set) → 1"]),
        ({"a": 1}, None, ["(not set)"]),
        ({"a": [{"name": "x", "v": 1}]}, {"a": [{"name": "y"}, {"name": "x", "v": 2}]}, ["a[x].v: 2 → 1"]),
        ({"a": [{"name": "x"}]}, {"a": [{"name": "y"}]}, ["a[x]: (not set) → {'name': 'x'}"]),
        ({"a": [{"mountPath": "/x", "v": 1}]}, {"a": ["?", {"mountPath": "/x", "v": 2}]}, ["a[/x].v: 2 → 1"]),
        ({"a": [1, 2]}, {"a": [1, 3]}, ["a[1]: 3 → 2"]),
        ({"a": [1, 2]}, {"a": [1]}, ["a[1]: (not set) → 2"]),
        ({"a": [1]}, {"a": [1, 2, 3]}, ["a: 3 entries → 1"]),
        ({"a": "x" * 100}, {"a": "y"}, ["a: 'y' → '" + "x" * 78 + "…"]),
        ({"a": "x" * 79}, {"a": "y"}, ["a: 'y' → '" + "x" * 78 + "…"]),
        ({"a": "x" * 78}, {"a": "y"}, ["a: 'y' → '" + "x" * 78 + "'"]),
    ],
)
def test_changed_fields_are_named_with_both_values(wanted: Any, found: Any, changes: list[str]) -> None:
    lines = list(changed_fields(wanted, found))
    assert len(lines) == len(changes)
    assert all(expected in line for expected, line in zip(changes, lines, strict=True))


def test_annotations_that_repeat_other_fields_are_left_out() -> None:
    annotations = {
        "serving.kvasir.dev/template": "new",
        "serving.kvasir.dev/inputs": "new",
        "serving.kvasir.dev/x": "new",
    }
    wanted = {"metadata": {"annotations": annotations}, "data": {"serving.kvasir.dev/template": "new"}}
    assert list(changed_fields(wanted, {"metadata": {"annotations": {}}, "data": {}})) == [
        "metadata.annotations.serving.kvasir.dev/x: (not set) → 'new'",
        "data.serving.kvasir.dev/template: (not set) → 'new'",
    ]


@pytest.mark.parametrize(("fields", "more"), [(MAX_CHANGES, []), (MAX_CHANGES + 2, ["    and 2 more"])])
def test_an_update_lists_a_bounded_number_of_fields(fields: int, more: list[str]) -> None:
    body = {"spec": {f"f{number}": 1 for number in range(fields)}}
    found = {"metadata": {"ownerReferences": [{"uid": "uid-1"}]}, "spec": {}}
    lines = describe(Apply((SERVICE, "demo"), body, ChildObject(found, Ownership.OURS, terminating=False)))
    assert lines[0] == "update Service/demo"
    assert lines[1:] == [f"    spec.f{number}: (not set) → 1" for number in range(MAX_CHANGES)] + more


def test_a_status_is_shown_as_counts_ranks_and_conditions() -> None:
    rank = {
        "rank": 1,
        "pod": "demo-engine-1",
        "phase": "Loading",
        "progress": "3.1/15.0 GB",
        "message": "from disk",
    }
    ready = {"type": "Ready", "status": "False", "reason": "Loading", "message": "0/1 engines are ready"}
    status = {
        "engines": {"summary": "0/1", "ranks": [rank]},
        "frontends": {"ready": 1, "desired": 2},
        "conditions": [ready],
    }
    assert status_lines(status) == [
        "status: engines 0/1, frontends 1/2",
        "    rank 1: Loading 3.1/15.0 GB from disk",
        "    Ready=False Loading: 0/1 engines are ready",
    ]


def test_a_status_without_fields_is_shown_as_empty() -> None:
    assert status_lines({}) == ["status: engines -, frontends 0/0"]
