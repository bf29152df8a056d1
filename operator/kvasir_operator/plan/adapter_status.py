"""Whether the frontends serve the LoRA adapters of the spec, as a condition and in the status."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kvasir_contract.reasons import Reason
from kvasir_contract.status_report import ReportedAdapters, adapter_list_digest
from kvasir_operator.observe.observed import Observed
from kvasir_operator.plan.conditions import Condition, condition
from kvasir_operator.plan.problem import MAX_NAMED, count, verb
from kvasir_operator.resources.adapter_list import adapters_text
from kvasir_operator.spec import InferenceService

ADAPTERS_READY: Final = "AdaptersReady"
READING_SECONDS: Final = 5.0  # until the frontends are asked again: no event reports their adapters
FAILED_SECONDS: Final = 30.0


def adapter_conditions(service: InferenceService, observed: Observed) -> list[Condition]:
    """Return the condition of a service with a list of adapters, else none."""
    if service.model.lora_adapters is None:
        return []
    current = _current(service, observed)
    problems = [*dict.fromkeys(problem for report in current for problem in report.problems)]
    total = count(len(service.model.lora_adapters), "adapter")
    if problems:
        more = f"; and {len(problems) - MAX_NAMED} more" if len(problems) > MAX_NAMED else ""
        message = "; ".join(problems[:MAX_NAMED]) + more
        return [Condition(ADAPTERS_READY, False, Reason.MODEL_NOT_FOUND, f"of {total}: {message}")]
    ready = [member for member in observed.frontends if member.state.ready]
    if not ready:
        return [Condition(ADAPTERS_READY, False, Reason.LOADING, f"no frontend is ready to serve {total}")]
    if len(current) < len(ready):
        late = len(ready) - len(current)
        message = f"{count(late, 'frontend')} {verb(late, 'has', 'have')} not read the list of {total} yet"
        return [Condition(ADAPTERS_READY, False, Reason.LOADING, message)]
    served = "there are no adapters" if not service.model.lora_adapters else f"{total} can be requested"
    return [Condition(ADAPTERS_READY, True, Reason.AS_DESIRED, served)]


def adapter_counts(service: InferenceService, observed: Observed) -> dict[str, int] | None:
    """Return the adapters that are desired, and those that every ready frontend serves."""
    if service.model.lora_adapters is None:
        return None
    current, ready = _current(service, observed), [each for each in observed.frontends if each.state.ready]
    served = min((report.served for report in current), default=0) if len(current) == len(ready) else 0
    return {"desired": len(service.model.lora_adapters), "ready": served}


def seconds_until_read(status: Mapping[str, Any]) -> float | None:
    """Return when to ask the frontends again, or None."""
    found = condition(status, ADAPTERS_READY)
    if found.get("status") != "False":
        return None
    return READING_SECONDS if found["reason"] == Reason.LOADING else FAILED_SECONDS


def _current(service: InferenceService, observed: Observed) -> Sequence[ReportedAdapters]:
    # of ready frontends that have read this list
    wanted = adapter_list_digest(adapters_text(service).encode())
    found = [member.adapters for member in observed.frontends if member.state.ready]
    return [adapters for adapters in found if adapters is not None and adapters.list == wanted]
