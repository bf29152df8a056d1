"""Phases, reasons, exit codes, environment, endpoints: facts that scripts and other processes rely on."""

import re

from kvasir_contract import api, endpoints, environment
from kvasir_contract.exits import KILLED, ExitCode
from kvasir_contract.phases import Phase
from kvasir_contract.reasons import FAILURES, Reason


def test_phases_are_in_the_order_of_a_start() -> None:
    assert list(Phase) == [
        *("Scheduling", "Pulling", "Starting", "Loading", "Warming", "Ready", "Draining", "Failed"),
    ]


def test_reasons_are_ordered_by_urgency() -> None:
    assert min(Reason, key=lambda reason: reason.urgency) is Reason.NAME_TAKEN
    assert max(Reason, key=lambda reason: reason.urgency) is Reason.AS_DESIRED
    assert len({reason.urgency for reason in Reason}) == len(Reason)


def test_reasons_of_progress_are_not_failures() -> None:
    assert set(Reason) - set(FAILURES) == {
        *(
            Reason.PAUSED,
            Reason.WAKING_UP,
            Reason.ROLLING_OUT,
            Reason.QUEUED,
            Reason.WAITING_FOR_NODE,
            Reason.WARMING,
            Reason.LOADING,
            Reason.AWAITING_ADDRESS,
            Reason.UPGRADE_PENDING,
            Reason.LOAD_UNKNOWN,
            Reason.SCALE_IGNORED,
            Reason.AT_MAX_RANKS,
            Reason.FRONTENDS_UNREACHABLE,
            Reason.SCALED_TO_ZERO,
            Reason.AS_DESIRED,
        ),
    }


def test_words_can_stand_in_a_status() -> None:
    for word in (*Phase, *Reason):
        assert re.fullmatch(r"[A-Z][A-Za-z]*", word), "Kubernetes demands CamelCase of a condition's reason"


def test_exit_codes_are_those_of_the_documentation() -> None:
    assert [(code.name, code.value) for code in ExitCode] == [
        ("OK", 0),
        ("FAILED", 1),
        ("USER_ERROR", 2),
        ("INTERRUPTED", 130),
        ("BROKEN_PIPE", 141),
    ]
    assert KILLED == 128 + 9


def test_variables_have_the_prefix() -> None:
    names = ("LINK", "LINK_KEYS", "SERVICE_UID", "DATA_PARALLEL_RANK", "OPS_HOST", "OPS_PORT", "HOST", "PORT", "FD")
    for name in (
        *names,
        "DATA_PARALLEL_SIZE_LOCAL",
        "SHUTDOWN_DELAY",
        "API_KEY_DIR",
        "ADMIN_API_KEY_DIR",
        "MANAGED_VARIABLES",
        "POD_INDEX",
        "POD_IP",
    ):
        assert getattr(environment, name) == environment.PREFIX + name


def test_each_side_mounts_its_secret_and_the_peers_public_key() -> None:
    assert set(environment.FRONTEND_KEY_FILES) | set(environment.ENGINE_KEY_FILES) == set(environment.KEY_FILES)
    assert not set(environment.FRONTEND_KEY_FILES) & set(environment.ENGINE_KEY_FILES)


def test_reserved_directories_are_absolute_and_distinct() -> None:
    reserved = environment.RESERVED_DIRECTORIES
    assert len(set(reserved)) == len(reserved)
    assert all(path.startswith("/") and not path.endswith("/") for path in reserved)


def test_ports_and_their_names_differ() -> None:
    ports = [value for name, value in vars(endpoints).items() if name.endswith("_PORT")]
    names = [value for name, value in vars(endpoints).items() if name.endswith("_PORT_NAME")]
    assert len(set(ports)) == len(ports) == 5
    assert len(set(names)) == len(names) == 4
    assert all(re.fullmatch(r"[a-z][a-z-]{0,14}", name) for name in names), "as Kubernetes names ports"


def test_probes_allow_a_timeout_within_their_period() -> None:
    for timing in (endpoints.LIVENESS, endpoints.READINESS):
        assert timing.timeout < timing.period
    assert endpoints.FRONTEND_STARTUP.path == endpoints.LIVENESS.path == endpoints.LIVE_PATH


def test_api_names_agree() -> None:
    assert f"{api.GROUP}/{api.VERSION}" == api.API_VERSION
    assert f"{api.PLURAL}.{api.GROUP}" == api.CRD_NAME
