"""The ConfigMap with the LoRA adapters, which every frontend reads again when it changes.

It is not part of a pod template, so a change of the adapters replaces no pod.
"""

import json

from kvasir_contract.environment import ADAPTERS_FILE
from kvasir_operator.resources.names import Object, metadata
from kvasir_operator.spec import InferenceService


def adapters_name(service: InferenceService) -> str:
    return f"{service.name}-adapters"


def adapters_text(service: InferenceService) -> str:
    adapters = [{"name": each.name, "source": each.source} for each in service.model.lora_adapters or ()]
    return json.dumps(adapters, indent=1, ensure_ascii=False) + "\n"


def adapters_config_map(service: InferenceService) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(service, adapters_name(service), "frontend"),
        "data": {ADAPTERS_FILE: adapters_text(service)},
    }
