"""The volume that holds a service's model. Frontends and engines mount it read-only."""

from kvasir_contract.environment import MODEL_DIRECTORY
from kvasir_operator.resources.pod import Mount
from kvasir_operator.spec import InferenceService


def model_mounts(service: InferenceService) -> list[Mount]:
    claim = service.model.claim
    if not claim:
        return []
    # read-only in the container alone: a disk with a read-only source cannot be attached for writing elsewhere
    source = {"persistentVolumeClaim": {"claimName": claim}}
    return [Mount("kvasir-model", MODEL_DIRECTORY, source, read_only=True)]
