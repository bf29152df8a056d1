"""Rejects a model that cannot be split over the ranks, before they join.

`python -m kvasir.worker.split_refusal DIRECTORY CONTEXT OPTIONS OVERRIDES` is the child process: the engine's own
never imports torch.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.options import ConfigError
from kvasir.config.resolve import ResolvedEngine
from kvasir.hub.model_info import ModelFiles, ModelInfo, load_model_info
from kvasir.hub.weights import has_weights
from kvasir_contract.exits import ExitCode

# Workers take seconds of a core and hundreds of megabytes.
_FEW: Final = 4


def check_split(model: ModelInfo, context: int, executor: ExecutorConfig) -> None:
    # Raises ModelLoadError. `context` in tokens.
    if executor.num_workers == 1:
        return
    from kvasir.models.check_ranks import check_ranks

    ranks, stages = executor.tensor_parallel_size, executor.pipeline_parallel_size
    check_ranks(model, context, ranks, executor.enable_expert_parallel, stages=stages)


def check_early(model: ModelInfo, settings: ResolvedEngine) -> None:
    # Otherwise rank 0 finds out as early and cheaply.
    is_local = settings.load_format == "dummy" or has_weights(model.path)
    num_workers = settings.executor.num_workers
    if num_workers == 1 or (is_local and num_workers <= _FEW):
        return
    options = msgspec.json.encode(settings.executor).decode()
    child = subprocess.run(
        [
            *(
                sys.executable,
                "-m",
                "kvasir.worker.split_refusal",
                model.path,
                str(settings.max_model_len),
                options,
            ),
            json.dumps(model.overrides),
            model.weight_scheme.option,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if child.returncode == ExitCode.USER_ERROR:
        raise ConfigError(child.stdout)
    if child.returncode != 0:
        raise RuntimeError(
            f"the process that checks the split ended with exit code {child.returncode}: see its output above"
        )


def main(directory: str, context: str, options: str, overrides: str, quantization: str) -> ExitCode:
    executor = msgspec.json.decode(options, type=ExecutorConfig)
    files = ModelFiles(overrides=json.loads(overrides), quantization=quantization or None)
    try:
        check_split(load_model_info(Path(directory), files), int(context), executor)
    except ConfigError as error:
        sys.stdout.write(str(error))
        return ExitCode.USER_ERROR
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
