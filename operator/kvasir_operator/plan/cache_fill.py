"""Whether the cache of the model is filled, and the Job that fills it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvasir_contract.reasons import Reason
from kvasir_operator.cluster.kinds import CLAIM, JOB
from kvasir_operator.observe.observed import ChildKey, ChildObject, Object, Observed, Ownership
from kvasir_operator.plan.conditions import Condition
from kvasir_operator.plan.problem import Problem, most_urgent_of_pods
from kvasir_operator.resources.model_cache import cache_job
from kvasir_operator.resources.model_volume import cache_directory, claim_name
from kvasir_operator.resources.names import FILLED_ANNOTATION
from kvasir_operator.resources.release import Release
from kvasir_operator.spec import InferenceService

MODEL_CACHED: Final = "ModelCached"
_NAMED: Final = Problem(Reason.LOADING, "the model is not cached")


@dataclass(frozen=True)
class CacheFill:
    filled: str = ""  # the directory to record on the claim, or ""
    job: Object | None = None  # None: not needed, or no longer
    problem: Problem | None = None  # why pods cannot mount the model yet
    conditions: tuple[Condition, ...] = ()

    @property
    def job_keys(self) -> list[ChildKey]:
        return [] if self.job is None else [(JOB, self.job["metadata"]["name"])]


def cache_fill(service: InferenceService, observed: Observed, release: Release) -> CacheFill:
    if service.model.cache is None:
        return CacheFill()
    name, directory = claim_name(service), cache_directory(service.model.source)
    claim = observed.children.get((CLAIM, name))
    if claim is not None and claim.terminating:
        # a pod that is not running yet cannot mount it
        why = f"PersistentVolumeClaim {name} is being deleted, which ends when no pod mounts it"
        return _waits(None, Problem(Reason.LOADING, why))
    if claim is not None and claim.ownership is Ownership.FOREIGN:
        return _waits(
            None, Problem(Reason.NAME_TAKEN, f"PersistentVolumeClaim {name} is not of this service"), _NAMED
        )
    recorded = "" if claim is None else claim.object["metadata"].get("annotations", {}).get(FILLED_ANNOTATION, "")
    if recorded == directory:
        return CacheFill(directory, None, None, (_cached(service, name),))
    job = cache_job(service, release)
    running = observed.children.get((JOB, job["metadata"]["name"]))
    if running is not None and running.ownership is Ownership.OURS and _has(running.object, "Complete"):
        if claim is None or _created(claim) > _created(running):
            why = f"Job {job['metadata']['name']} filled an earlier claim: it is deleted, to fetch the model again"
            return _waits(None, Problem(Reason.LOADING, why))
        return CacheFill(directory, job, None, (_cached(service, name),))
    for key, refusal in observed.refusals.items():
        if key[0] in (CLAIM, JOB):
            return _waits(job, Problem(refusal.reason, refusal.message), _NAMED)
    return _waits(job, _problem(observed, claim, running, name))


def _cached(service: InferenceService, name: str) -> Condition:
    message = f"PersistentVolumeClaim {name} has all files of {service.model.source}"
    return Condition(MODEL_CACHED, True, Reason.AS_DESIRED, message)


def _waits(job: Object | None, problem: Problem, short: Problem | None = None) -> CacheFill:
    # `short`: for the service, which has the problem itself already
    condition = Condition(MODEL_CACHED, False, problem.reason, problem.message)
    of_service = short or Problem(problem.reason, f"the model is being cached: {problem.message}")
    return CacheFill("", job, of_service, (condition,))


def _problem(observed: Observed, claim: ChildObject | None, job: ChildObject | None, name: str) -> Problem:
    if job is not None and _has(job.object, "Failed"):
        why = f"Job {job.object['metadata']['name']} has failed: delete it to try again"
        return Problem(Reason.DOWNLOAD_FAILED, why)
    if observed.claim_failure:
        why = f"PersistentVolumeClaim {name} gets no volume ({observed.claim_failure}): check model.cache"
        return Problem(Reason.VOLUME_FAILED, why)
    problem = most_urgent_of_pods([member.state for member in observed.fetches])
    if problem is not None:
        return problem
    if job is not None and observed.job_failure:
        why = f"the pod of Job {job.object['metadata']['name']} cannot be created ({observed.job_failure})"
        return Problem(Reason.UNSCHEDULABLE, f"{why}: check quotas and admission policies")
    return Problem(Reason.LOADING, "the Job that downloads it has no pod yet" if claim else "it has no claim yet")


def _created(child: ChildObject) -> str:
    return str(child.object["metadata"].get("creationTimestamp", ""))


def _has(job: Mapping[str, Any], kind: str) -> bool:
    conditions = job.get("status", {}).get("conditions") or ()
    return any((each["type"], each["status"]) == (kind, "True") for each in conditions)
