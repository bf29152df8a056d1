import json
import logging
from collections.abc import Sequence

import pytest

from kvasir_contract.logs import JsonFormatter, TextFormatter

MOMENTS = (1_700_000_000.25, 1_700_000_000.75, 1_700_000_001.0, 1_700_000_000.5)
TIMES = [
    "2023-11-14T22:13:20.250Z",
    "2023-11-14T22:13:20.750Z",
    "2023-11-14T22:13:21.000Z",
    "2023-11-14T22:13:20.500Z",
]


def lines(formatter: logging.Formatter, moments: Sequence[float]) -> list[str]:
    result = []
    for moment in moments:
        record = logging.LogRecord("name", logging.INFO, "", 0, "text", None, None)
        record.created, record.msecs = moment, moment % 1 * 1000
        result.append(formatter.format(record))
    return result


@pytest.mark.parametrize("kind", ["text", "json"])
def test_each_line_has_the_time_of_its_record(kind: str) -> None:
    if kind == "text":
        times = [line.split()[0] for line in lines(TextFormatter("p"), MOMENTS)]
    else:
        times = [json.loads(line)["time"] for line in lines(JsonFormatter("p"), MOMENTS)]
    assert times == TIMES
