"""Check a model and settings before a process starts.

Packages of an extra are imported in functions: help needs none.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kvasir.config.chat_settings import ChatConfig
from kvasir.config.executor_settings import ExecutorConfig
from kvasir.config.hardware.device_facts import GPU_DRIVERS
from kvasir.config.lora_settings import AdaptersConfig, LoRAConfig
from kvasir.config.options import ConfigError
from kvasir.config.settings import EngineConfig, ModelConfig
from kvasir.config.tls_settings import TlsConfig
from kvasir.local.gpus import visible_gpus

if TYPE_CHECKING:
    from kvasir.hub.model_info import ModelInfo

CHAT: Final = "chat"
_HEADS: Final = ("num_attention_heads", "n_head")
_LAYERS: Final = ("num_hidden_layers", "n_layer")


def check_model(
    config: EngineConfig,
    chat: ChatConfig = ChatConfig(),  # noqa: B008  (it is frozen)
    tls: TlsConfig = TlsConfig(),  # noqa: B008
) -> str:
    """Fetch config and tokenizer, no weights, and return the use of the service: CHAT, or a task.

    Weights that are here are checked to be whole, by their headers. Raises HubError, and ConfigError for settings
    that the model, this machine or a file does not allow.
    """
    from kvasir.client.input.chat_templates import ChatTemplates
    from kvasir.config.entry_points import EXTENSIONS, WORKERS, plugin_entry
    from kvasir.config.resolve import check_context
    from kvasir.frontend.http.connections.tls import Tls
    from kvasir.hub.located_model import read_model
    from kvasir.hub.pooling.pooling_info import GENERATE
    from kvasir.hub.source import normalise
    from kvasir.hub.weights import weight_files

    source = config.model.source
    if source == "demo" and not Path("demo/config.json").exists():
        raise ConfigError("demo is not the name of a model: did you mean demo://?")
    check_parsers(chat)
    Tls.of(tls)
    for group, option in ((WORKERS, "worker_cls"), (EXTENSIONS, "worker_extension_cls")):
        if (name := getattr(config.executor, option)) is not None:
            plugin_entry(group, name, option)
    model = read_model(config.model)
    check_context(config.model.max_model_len, model.max_model_len)
    check_split(model.config, config.executor)
    if _is_on_cpu(config.device.device):
        _check_on_cpu(config, model)
    if not normalise(source).startswith(("hf://", "s3://")):  # engines download those
        weight_files(model.path)
    if model.pooling is not None:
        return model.pooling.task
    return GENERATE if ChatTemplates.load(model.tokenizer_path, chat).text is None else CHAT


def check_adapters(adapters: AdaptersConfig, lora: LoRAConfig, model: ModelConfig) -> None:
    """Raises HubError for an adapter that engines would reject."""
    from kvasir.hub.adapters.adapter_info import read_adapter
    from kvasir.hub.hub_errors import HubError

    for module in adapters.modules:
        if module.name in (model.served_model_name or (model.source,)):
            raise HubError(
                f"--lora-modules {module.name}: this is a name of the model: give the adapter another one"
            )
        try:
            read_adapter(module.source, weights=False, max_rank=lora.max_lora_rank, download_dir=model.download_dir)
        except HubError as error:
            raise type(error)(f"--lora-modules {module.name}: {error}") from None


def _is_on_cpu(device: str) -> bool:
    if device != "auto" or visible_gpus():
        return device == "cpu"
    # The GPUs of WSL, Tegra and AMD have no numbered device files.
    return "CUDA_VISIBLE_DEVICES" in os.environ or not any(driver.exists() for driver in GPU_DRIVERS)


def _check_on_cpu(config: EngineConfig, model: "ModelInfo") -> None:
    # Only torch finds the facts of a GPU.
    from kvasir.config.hardware.device_facts import cpu_facts
    from kvasir.config.resolve import ModelFacts, resolve_engine

    facts = ModelFacts(model.dtype, model.max_model_len, model.width, model.pooling is not None)
    resolve_engine(config, facts, cpu_facts())


def check_parsers(chat: ChatConfig) -> None:
    # Files of plug-ins may add names, and are not run here.
    from kvasir.frontend.parsers.format_plugins import KnownFormats, choose_format

    for option, file in (
        ("--tool-parser-plugin", chat.tool_parser_plugin),
        ("--reasoning-parser-plugin", chat.reasoning_parser_plugin),
    ):
        if file is not None and not Path(file).is_file():
            raise ConfigError(f"{option} {file}: there is no such file")
    if chat.parser_plugins:
        return
    known = KnownFormats()
    choose_format("tool", "--tool-call-parser", known.tools, chat.tool_call_parser, None)
    choose_format("reasoning", "--reasoning-parser", known.reasoning, chat.reasoning_parser, None)


def check_split(config: Mapping[str, Any], executor: ExecutorConfig) -> None:
    # The engine checks all other numbers.
    text = config.get("text_config")
    numbers = {**config, **text} if isinstance(text, dict) else config
    ranks, stages = executor.tensor_parallel_size, executor.pipeline_parallel_size
    for name in _HEADS:
        if isinstance(heads := numbers.get(name), int) and heads > 0 and heads % ranks:
            sizes = [size for size in range(1, heads + 1) if heads % size == 0]
            raise ConfigError(
                f"--tensor-parallel-size {ranks} does not divide {name} = {heads} of config.json: "
                f"choose {' or '.join(map(str, sizes))}"
            )
    for name in _LAYERS:
        if isinstance(layers := numbers.get(name), int) and 0 < layers < stages:
            raise ConfigError(
                f"--pipeline-parallel-size {stages} is more than {name} = {layers} of config.json: "
                f"choose at most {layers}"
            )
