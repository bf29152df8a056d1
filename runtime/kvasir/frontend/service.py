"""The objects that the routes of one server share, by `ServiceDep`."""

import time
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

from fastapi import Depends, Request

from kvasir.client.async_llm import AsyncLLM
from kvasir.client.dispatch.adapter_places import max_lora_rank
from kvasir.client.request_errors import EngineUnavailable
from kvasir.config.frontend_settings import FrontendConfig, ServerConfig
from kvasir.config.lora_settings import AdaptersConfig
from kvasir.config.options import ConfigError
from kvasir.frontend.adapters.adapter_updates import AdapterUpdates
from kvasir.frontend.adapters.listed_adapters import ListedAdapters
from kvasir.frontend.adapters.served_adapters import ServedAdapters
from kvasir.frontend.errors import ApiError, unfit_model
from kvasir.frontend.http.access import Access, Shares
from kvasir.frontend.http.bodies.body_memory import ParsedBodies, Uploads
from kvasir.frontend.http.bodies.json_cost import CostCheck
from kvasir.frontend.http.connections.disconnection import LiveRequests
from kvasir.frontend.http.user_middleware import load_middleware
from kvasir.frontend.parsers import Parsers
from kvasir.frontend.telemetry.engine_load import AdapterRequests
from kvasir.frontend.telemetry.metrics import Metrics
from kvasir.hub.pooling.pooling_info import EMBED
from kvasir.request.adapter import Adapter
from kvasir.version import __version__

if TYPE_CHECKING:
    from kvasir.frontend.telemetry.tracing import Tracing

MAX_NAMED: Final = 8  # models in an error
RETRY_SECONDS: Final = 1.0  # for an adapter that is being read


class ServedModel(NamedTuple):
    name: str
    adapter: Adapter | None


class Service:
    def __init__(
        self,
        config: FrontendConfig,
        llm: AsyncLLM,
        access: Access,
        metrics: Metrics,
        parsers: Parsers,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.llm = llm
        self.parsers = parsers
        self.hides_unused_tools = config.chat.exclude_tools_when_tool_choice_none
        """No tools for the chat template if the request forbids calls."""
        self.access = access
        self.metrics = metrics
        self.tracing = tracing
        """None without `--otlp-traces-endpoint`."""
        self.live = LiveRequests()
        self.model_names = served_names(config)
        self.adapters = ServedAdapters(self.model_names, config.model.download_dir)
        self.listed_adapters: ListedAdapters | None = None
        self.adapter_updates = AdapterUpdates.of(config)
        self.model_source = config.model.source
        self.max_request_bytes = config.server.max_request_bytes
        self.upload_timeout = config.server.upload_timeout
        self.uploads = Uploads(config.server.upload_bytes)
        self.parsed_bodies = ParsedBodies(config.server.parsed_bytes)
        self.log_requests = config.server.log_requests
        self.cors = cors_options(config.server)
        self.root_path = config.server.root_path
        self.middleware = load_middleware(config.server.middleware)
        self.has_docs = not config.server.disable_fastapi_docs
        self.has_page = not config.server.disable_page
        self.sends_request_ids = config.server.enable_request_id_headers
        self.max_live_requests = config.server.max_live_requests
        self.max_prompts = config.server.client_requests
        self.cost_check = CostCheck()
        self.shares = Shares(config.server.client_requests)
        self.strict_fields = config.server.strict_fields
        self.tokenizer_info: dict[str, Any] | None = None
        """None if GET /tokenizer_info is disabled."""
        self.started = int(time.time())
        # the same seed may give another answer under another fingerprint
        self.fingerprint = f"kvasir-{__version__}-{llm.model_fingerprint[:8]}"
        self.stopping = False
        """Unready, but requests are answered."""

    def model_name(self, asked: str | None) -> str:
        """Return the requested name, or by default the first. Raises ApiError 404."""
        return self.served(asked).name

    def served(self, asked: str | None) -> ServedModel:
        """Return the requested model, or by default the one without an adapter.

        Raises ApiError 404, and EngineUnavailable for an adapter that is being read.
        """
        if asked is None:
            return ServedModel(self.model_names[0], None)
        if asked in self.model_names:
            return ServedModel(asked, None)
        if (found := self.adapters.get(asked)) is not None:
            return ServedModel(asked, found.adapter)
        if self.listed_adapters is not None and self.listed_adapters.is_unread(asked):
            raise EngineUnavailable(
                f"the LoRA adapter {asked!r} is being read: try again in a while", RETRY_SECONDS
            )
        names = [*self.model_names, *self.adapters]
        more = f" or one of {len(names) - MAX_NAMED} others (GET /v1/models)" if len(names) > MAX_NAMED else ""
        raise ApiError(
            404,
            f"the model {asked!r} is not served here: use {' or '.join(map(repr, names[:MAX_NAMED]))}{more}",
            param="model",
            code="model_not_found",
        )

    def load_adapters(self, config: AdaptersConfig) -> None:
        """Let the adapters be read once the server listens. Raises ConfigError for an unusable list."""
        if self.pools and config.any_named:
            raise ConfigError("--lora-modules: adapters need a model that generates text, and this one does not")
        if config.any_named:
            self.metrics.registry.register(AdapterRequests(self.llm.adapters_in_use))
        for name in {module.name for module in config.modules}.intersection(self.model_names):
            raise ConfigError(f"--lora-modules {name}: {name} is a name of the model: give the adapter another one")
        if config.modules or config.lora_modules_file is not None:
            self.listed_adapters = ListedAdapters(config, self.adapters)

    def refresh_adapters(self) -> None:
        if self.listed_adapters is not None:
            self.listed_adapters.tick(max_lora_rank(self.llm.engines.values()))

    def measure_load(self) -> None:
        """Renew the load that the operator reads, about every second."""
        llm, waits = self.llm, self.llm.waits()
        engines = [engine for engine in llm.engines.values() if engine.usable]
        kv_uses = [
            engine.stats.kv_blocks_used / max(1, engine.capacity.num_blocks)
            for engine in engines
            if engine.stats is not None and engine.capacity is not None
        ]
        kv_use = sum(kv_uses) / len(kv_uses) if kv_uses else None
        self.metrics.load.tick(llm.num_arrived, llm.live_requests - len(waits), waits, len(engines), kv_use)

    @property
    def pools(self) -> bool:
        return self.llm.input.pooling is not None

    def wrong_kind(self, path: str) -> ApiError:
        name = self.model_names[0]
        pooling = self.llm.input.pooling
        if pooling is None:
            text = (
                f"{path} needs a model that makes vectors or scores, and {name} generates text: serve an embedding "
                "model or a cross-encoder, or this model with --task embed"
            )
        else:
            other = "/v1/embeddings" if pooling.info.task == EMBED else "/classify, /score or /rerank"
            text = f"{path} needs a model that generates text, and {name} makes vectors or scores: use {other}"
        return unfit_model(text)

    def unready_reason(self) -> str | None:
        if self.stopping:
            return "the server is shutting down"
        if (problem := self.access.keys.problem) is not None:
            return problem
        # If engines vanish later, the frontend stays ready: another one would have no engines either.
        if not self.llm.gate.accepts:
            return "no engine has been ready yet"
        if self.listed_adapters is not None and self.listed_adapters.delays_readiness:
            return "the LoRA adapters are being read"
        return None


def served_names(config: FrontendConfig) -> tuple[str, ...]:
    return config.model.served_model_name or (config.model.source,)


def cors_options(config: ServerConfig) -> dict[str, Any] | None:
    if not config.allowed_origins:
        return None
    return {
        "allow_origins": config.allowed_origins,
        "allow_methods": config.allowed_methods,
        "allow_headers": config.allowed_headers,
        "allow_credentials": config.allow_credentials,
        "expose_headers": ("X-Request-Id", "Retry-After"),
    }


def service_of(request: Request) -> Service:
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


def require_admin(request: Request) -> None:
    if (error := service_of(request).access.control_refusal(request.scope["headers"])) is not None:
        raise error


ServiceDep = Annotated[Service, Depends(service_of)]
AdminDep = Annotated[None, Depends(require_admin)]
