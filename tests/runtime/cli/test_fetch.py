from kvasir.cli.fetch import FetchStatus
from kvasir_contract.phases import Phase
from kvasir_contract.status_report import ReportedProgress
from runtime.fake_clock import FakeClock


def test_a_download_reports_bytes_speed_and_time_left() -> None:
    clock = FakeClock()
    status = FetchStatus(clock)
    assert (status.report().progress, status.report().message) == (None, "")
    for second in range(31):
        status.advance(second * 100_000_000, 20_000_000_000)
        clock.now += 1
    report = status.report()
    assert report.phase is Phase.LOADING
    assert report.progress == ReportedProgress(3_000_000_000, 20_000_000_000)
    speed, _, left = report.message.partition(", ")
    assert 90 <= float(speed.removesuffix(" MB/s")) <= 100
    assert left == "about 3 min left"
    assert status.trouble() is None
    clock.now += 1000
    assert "no bytes have arrived for 100" in str(status.trouble())
