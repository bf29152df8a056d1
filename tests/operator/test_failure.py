"""Why a container ended: the table from what Kubernetes says to a reason and a message."""

import json
from typing import Any

import pytest

from kvasir.hub.errors import ModelNotFound
from kvasir_operator import failure
from kvasir_operator.reasons import Reason

ENDED = "2026-11-21T07:00:01.000Z INFO    engine-0 ended after 1.0 s with exit code 2"


def error(text: str) -> str:
    before = "2026-11-21T07:00:00.000Z INFO    engine-0 Starting took 0.1 s"
    return f"{before}\n2026-11-21T07:00:01.000Z ERROR   engine-0 {text}\n"


TERMINATED: dict[str, tuple[dict[str, Any], Reason, str]] = {
    "model not found": (
        {"exitCode": 2, "message": error("model not found: hf://no/such was not found") + ENDED},
        Reason.MODEL_NOT_FOUND,
        "hf://no/such was not found",
    ),
    "model not found, said by the command": (
        {"exitCode": 2, "message": "kvasir frontend: model not found: /x does not exist\n"},
        Reason.MODEL_NOT_FOUND,
        "/x does not exist",
    ),
    "model not found, as JSON": (
        {"exitCode": 2, "message": json.dumps({"level": "error", "message": "model not found: /x does not exist"})},
        Reason.MODEL_NOT_FOUND,
        "/x does not exist",
    ),
    "a setting": (
        {"exitCode": 2, "message": error("--block-size 7 cannot be used") + ENDED},
        Reason.INVALID_SPEC,
        "--block-size 7 cannot be used",
    ),
    "an option": (
        {"exitCode": 2, "message": "kvasir engine: unrecognized arguments: --x\nSee kvasir engine --help.\n"},
        Reason.INVALID_SPEC,
        "unrecognized arguments: --x",
    ),
    "nothing said": ({"exitCode": 2}, Reason.INVALID_SPEC, "it cannot use its settings: see the pod's log"),
    "killed for memory": (
        {"exitCode": 137, "reason": "OOMKilled"},
        Reason.OUT_OF_MEMORY,
        "it needed more memory than its limit and was killed",
    ),
    "the GPU's memory": (
        {
            "exitCode": 1,
            "message": error("the engine failed in phase Loading") + "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in f\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n'
            + ENDED,
        },
        Reason.OUT_OF_MEMORY,
        "the engine failed in phase Loading — torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB",
    ),
    "a bug": (
        {
            "exitCode": 1,
            "message": error("the engine failed in phase Warming") + "Traceback (most recent call last):\n"
            '  File "x.py", line 1, in f\nKeyError: 3\n',
        },
        Reason.CRASH_LOOPING,
        "it ended with exit code 1: the engine failed in phase Warming — KeyError: 3",
    ),
    "killed": (
        {"exitCode": 137, "reason": "Error"},
        Reason.CRASH_LOOPING,
        "it was killed (SIGKILL): see the pod's log",
    ),
    "somebody else's words": (
        {"exitCode": 127, "message": 'exec: "kvasir": executable file not found in $PATH'},
        Reason.CRASH_LOOPING,
        'it ended with exit code 127: exec: "kvasir": executable file not found in $PATH',
    ),
}


@pytest.mark.parametrize("case", TERMINATED)
def test_a_container_that_ended(case: str) -> None:
    terminated, reason, words = TERMINATED[case]
    found = failure.of_terminated(terminated)
    assert found is not None
    assert found.reason is reason
    assert found.message.startswith(words)


def test_a_container_that_ended_well_is_no_failure() -> None:
    assert failure.of_terminated({"exitCode": 0}) is None


@pytest.mark.parametrize(
    ("waiting", "reason", "words"),
    [
        ("ErrImagePull", Reason.IMAGE_PULL_FAILED, "image i:1 cannot be pulled (why): check spec.image"),
        ("ImagePullBackOff", Reason.IMAGE_PULL_FAILED, "image i:1 cannot be pulled"),
        ("InvalidImageName", Reason.IMAGE_PULL_FAILED, "image i:1 cannot be pulled"),
        ("ErrImageNeverPull", Reason.IMAGE_PULL_FAILED, "image i:1 cannot be pulled"),
        ("CreateContainerConfigError", Reason.INVALID_SPEC, "why: create it"),
        ("RunContainerError", Reason.CRASH_LOOPING, "the container cannot be started (why)"),
    ],
)
def test_a_container_that_cannot_start(waiting: str, reason: Reason, words: str) -> None:
    found = failure.of_waiting({"reason": waiting, "message": "why"}, "i:1")
    assert found is not None
    assert found.reason is reason
    assert found.message.startswith(words)


@pytest.mark.parametrize("waiting", ["ContainerCreating", "PodInitializing", "CrashLoopBackOff", ""])
def test_waiting_that_is_no_failure_by_itself(waiting: str) -> None:
    assert failure.of_waiting({"reason": waiting}, "i:1") is None


def test_the_processes_mark_this_failure_as_the_operator_reads_it() -> None:
    assert str(ModelNotFound("there is none")).startswith(failure.MODEL_NOT_FOUND)
