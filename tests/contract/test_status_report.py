import json
from typing import Any

import pytest

from kvasir_contract.phases import Phase
from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import (
    MAX_COUNT,
    MAX_LINKS,
    MAX_MESSAGE_BYTES,
    MAX_REPORT_BYTES,
    ReportedDemand,
    ReportedLoad,
    ReportedProgress,
    ReportError,
    RunningStep,
    StatusReport,
)

FULL = StatusReport(
    phase=Phase.LOADING,
    message="naïve 漢字",
    reason=Reason.LINK_REFUSED,
    progress=ReportedProgress(3, 10),
    live_requests=2,
    incarnation="engine-3-abc",
    rank=3,
    links=("10.0.0.1", "fd00::1"),
    startup_seconds={"Starting": 1.5},
    step=RunningStep(7, "execute", 2.5, "1 row"),
    demand=ReportedDemand(gate_closed=True, request_seconds=0.5, engine_seconds=None),
    load=ReportedLoad(30.0, 2, 10, 9, 3, 4, queue_seconds=1.5, ttft=None, kv_cache_utilization=0.25),
)


def body(**fields: Any) -> bytes:
    return json.dumps({"phase": "Ready", "message": "", **fields}).encode()


@pytest.mark.parametrize("report", [FULL, StatusReport(Phase.READY), StatusReport(Phase.FAILED, "it broke")])
def test_report_is_read_as_it_was_written(report: StatusReport) -> None:
    assert StatusReport.from_json(report.to_json()) == report


def test_report_has_room_for_the_most_links() -> None:
    links = tuple(f"fd00:{number:04x}:1111:2222:3333:4444:5555:6666" for number in range(MAX_LINKS))
    written = StatusReport(Phase.READY, links=(*links, "::1")).to_json()
    assert len(written) <= MAX_REPORT_BYTES
    assert StatusReport.from_json(written).links == links


@pytest.mark.parametrize("links", [4, "10.0.0.1", ["::1"] * (MAX_LINKS + 1)])
def test_report_with_wrong_links_is_rejected(links: object) -> None:
    with pytest.raises(ReportError):
        StatusReport.from_json(body(links=links))


LOAD = vars(FULL.load)


@pytest.mark.parametrize(
    "load",
    [4, {}, LOAD | {"engines": -1}, LOAD | {"running": 1.5}, LOAD | {"ttft": -1.0}, LOAD | {"queue_seconds": True}],
)
def test_report_with_a_wrong_load_is_rejected(load: object) -> None:
    with pytest.raises(ReportError):
        StatusReport.from_json(body(load=load))


def test_report_needs_phase_and_message_only() -> None:
    assert StatusReport.from_json(body()) == StatusReport(Phase.READY)


def test_report_ignores_fields_of_a_later_release() -> None:
    assert StatusReport.from_json(body(temperature=40)) == StatusReport(Phase.READY)


def test_report_cuts_texts() -> None:
    report = StatusReport.from_json(
        body(message="漢" * 1000, incarnation="x" * 1000, startup_seconds={"y" * 99: 1})
    )
    assert len(report.message.encode()) <= MAX_MESSAGE_BYTES
    assert len(report.incarnation.encode()) <= 128
    assert [len(phase.encode()) for phase in report.startup_seconds] == [32]
    written = StatusReport(Phase.READY, "🦉" * 10_000).to_json()
    assert len(written) <= MAX_REPORT_BYTES
    assert StatusReport.from_json(written).message.endswith("…")


@pytest.mark.parametrize(
    "refused",
    [
        b"",
        b"not json",
        b"null",
        b"[]",
        b"3",
        b'"Ready"',
        b"{}",
        b"\xff\xfe\xfa",
        b"\x1f\x8b\x08\x00",
        b'{"phase": "Ready"}',
        body(phase="Dancing"),
        body(phase=None),
        body(phase=["Ready"]),
        body(phase={"a": "b"}),
        body(reason="Bored"),
        body(reason=7),
        body(progress=3),
        body(progress=[1, 2]),
        body(progress={"done": 1}),
        body(progress={"done": -1, "total": 2}),
        body(progress={"done": 1.5, "total": 2}),
        body(progress={"done": True, "total": 2}),
        body(progress={"done": float("inf"), "total": 2}),
        body(progress={"done": 1, "total": float("nan")}),
        body(progress={"done": 1, "total": MAX_COUNT + 1}),
        body(live_requests=-1),
        body(live_requests="3"),
        body(live_requests=None),
        body(rank=-1),
        body(rank="0"),
        body(rank=False),
        body(startup_seconds=[1]),
        body(startup_seconds={"Starting": -0.5}),
        body(startup_seconds={"Starting": float("-inf")}),
        body(startup_seconds={"Starting": "1"}),
        body(startup_seconds={"Starting": True}),
        body(step=4),
        body(demand=True),
        body(demand={"gate_closed": True}),
        body(demand={"gate_closed": True, "request_seconds": None, "engine_seconds": None, "can_hold": "yes"}),
        body(demand={"gate_closed": 1, "request_seconds": None, "engine_seconds": None, "can_hold": True}),
        body(demand={"gate_closed": True, "request_seconds": -1, "engine_seconds": None, "can_hold": True}),
        body(demand={"gate_closed": True, "request_seconds": None, "engine_seconds": "9", "can_hold": True}),
        body(step={"number": 1, "phase": "execute", "seconds": float("nan"), "batch": ""}),
        body(step={"number": 1, "phase": "execute", "seconds": 1}),
        b'{"phase": "Ready", "message": "", "startup_seconds": {"a": 1e999}}',
        b'{"phase": "Ready", "message": "", "live_requests": ' + b"9" * 5000 + b"}",
        b'{"phase": "Ready", "message": ' + b"[" * 15_000 + b"}",
        b"[" * MAX_REPORT_BYTES,
        body(message="x" * MAX_REPORT_BYTES),
    ],
)
def test_report_refuses_hostile_bodies(refused: bytes) -> None:
    with pytest.raises(ReportError):
        StatusReport.from_json(refused)


def test_report_texts_of_other_types_become_texts() -> None:
    report = StatusReport.from_json(body(message={"a": [1]}, incarnation=None))
    assert (report.message, report.incarnation) == ("{'a': [1]}", "None")
