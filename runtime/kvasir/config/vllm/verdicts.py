"""What becomes of each option of `vllm serve` that Kvasir does not have under the same name.

The names are those of options.json, which tools/vllm_options.py makes from vLLM's releases. An option that is in
neither table has the same name here. docs/vllm-options.md is generated from this module and compared by a test.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def _each(table: Mapping[str, str]) -> Mapping[str, str]:
    """Split names that share a text: "a b" → text becomes a → text, b → text."""
    return MappingProxyType({"--" + name: text for names, text in table.items() for name in names.split()})


MAPPED: Final = MappingProxyType(
    {
        "--device-memory-utilization": "--gpu-memory-utilization",
        "--disable-log-requests": "--no-log-requests",
        "--disable-uvicorn-access-log": "--no-log-requests",
        "--enable-log-requests": "--log-requests",
        "--max-num-queued-tokens": "--max-queued-tokens",
        "--shutdown-timeout": "--drain-timeout",
    }
)
"""Options of the same meaning → their names here."""

READ: Final = MappingProxyType(
    {
        "--config": "read: a YAML file with names of options and their values",
        "--headless": "starts `kvasir engine`, which needs the address of a `kvasir frontend`",
        "--model": "the first argument, MODEL",
        "--revision": "part of the model, MODEL@REVISION; a directory has none",
        "--tokenizer-revision": "part of `--tokenizer`, NAME@REVISION",
    }
)
"""Options that the command line itself answers → how."""

IGNORED: Final = _each({
    # speed on GPUs
    "optimization-level cudagraph-metrics performance-mode monokernel": "models are not compiled by torch",
    "cudagraph-capture-sizes cuda-graph-sizes max-cudagraph-capture-size":
        "give the sizes in `--compilation-config`",
    "attention-backend attention-config mamba-backend moe-backend linear-backend kernel-config ir-op-priority "
    "sparse-indexer-topk-backend gdn-prefill-backend kda-prefill-backend kda-decode-backend "
    "enable-flashinfer-autotune mamba-ssu-algorithm disable-cascade-attn":
        "the engine chooses its kernels by the device",
    "enable-batch-sharded-sampling enable-hc-sp enable-cumem-allocator enable-shm-tensor-arena "
    "disable-nccl-for-dp-synchronization dp-sync-interval prefill-schedule-interval":
        "it is an optimization of vLLM that is not in Kvasir; answers are the same without it",
    "jit-monitor-mode jit-monitor-verbose enable-layerwise-nvtx-tracing enable-mfu-metrics collect-detailed-traces "
    "ray-workers-use-nsight":
        "the engine has no such profile; see docs/profiling.md for the one that it has",
    # memory and caches
    "swap-space": "a preempted request is computed again from the prefix cache and is not swapped out",
    "enable-chunked-prefill": "long prompts are always computed in chunks",
    "max-parallel-loading-workers safetensors-load-strategy safetensors-prefetch-block-size "
    "safetensors-prefetch-num-threads pt-load-map-location use-tqdm-on-load":
        "weights are mapped from safetensors files, and the progress is always shown",
    "disable-hybrid-kv-cache-manager prefix-match-unit prefix-cache-retention-interval swa-bounded-replay "
    "scheduler-reserve-full-isl watermark num-lookahead-slots":
        "the KV cache is managed in another way: see docs/scheduling.md",
    "cp-kv-cache-interleave-size dcp-kv-cache-interleave-size dcp-comm-backend dcp-q-replicate":
        "there is no context parallelism",
    "numa-bind numa-bind-nodes numa-bind-cpus": "start `kvasir serve` below numactl instead",
    "stream-interval": "each chunk of a stream has the tokens that are ready when the client can take it",
    "renderer-num-workers max-log-len disable-frontend-multiprocessing":
        "each frontend is one process, which logs no prompts",
    # code and models
    "trust-remote-code code-revision": "code from a model's own repository is never run",
    "model-impl": "the architecture decides: see docs/models.md",
    "skip-mm-profiling disable-chunked-mm-input disable-mm-preprocessor-cache mm-processor-cache-gb "
    "mm-processor-cache-type mm-shm-cache-max-object-size-mb mm-encoder-tp-mode mm-encoder-attn-backend "
    "mm-encoder-attn-dtype mm-hasher-algorithm mm-ipc-gpu-memory-gb mm-processor-device mm-tensor-ipc "
    "limit-mm-per-prompt language-model-only media-io-kwargs allowed-local-media-path allowed-media-domains "
    "enable-multimodal-encoder-data-parallel interleave-mm-strings mm-processor-kwargs mm-device-do-normalize "
    "mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-path mm-encoder-fp8-scale-save-margin video-pruning-rate "
    "video-pruning-method trust-request-mm-kwargs":
        "models take text only",
    "mamba-cache-dtype mamba-ssm-cache-dtype mamba-block-size mamba-cache-mode mamba-cache-philox-rounds "
    "enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint use-replayssm "
    "replayssm-buffer-len": "models with a recurrent state are not supported",
    # server and logs
    "enable-prompt-tokens-details": "the usage always has the number of cached tokens",
    "enable-log-deltas": "answers are not logged",
    "aggregate-engine-logging enable-logging-iteration-details":
        "the frontend logs a line for the whole service, see --disable-log-stats; GET /metrics has each engine",
    "kv-cache-metrics kv-cache-metrics-sample custom-histogram-buckets show-hidden-metrics-for-version "
    "per-request-spec-decode-metrics": "GET /metrics has a fixed set of metrics: see docs/metrics.md",
    "enable-server-load-tracking": "GET /load always has the load of each engine",
    "disable-access-log-for-endpoints log-error-stack":
        "the frontend logs by --log-level, a line for each request (--log-requests), and no probes",
    "h11-max-incomplete-event-size h11-max-header-count":
        "the limits of headers are fixed, and that of bodies is --max-request-bytes",
    "sse-keep-alive-interval": "the interval is not adjustable",
    "fail-on-environ-validation": "unknown variables are always named in a warning",
    "enable-flash-late-interaction": "there are no pooling models",
    "enable-auto-tool-choice": "the model may always call tools, if the format of its calls is known",
    "tool-strict-level": "functions with strict, and tool_choice required or a name, are always enforced",
    "cohere-format cohere-is-reasoning-model "
    "anthropic-disabled-thinking-effort": "what Kvasir lacks is rejected request by request: see docs/api.md",
    "elastic-ep-max-dp-size enable-ep-weight-filter eplb-config eplb-log-balancedness eplb-step-interval "
    "eplb-window-size num-redundant-experts expert-placement-strategy dbo-decode-token-threshold "
    "dbo-prefill-token-threshold ubatch-size all2all-backend enable-nccl-comm-suspend":
        "experts stay on the ranks that they start on, in equal parts",
    "max-loras max-lora-rank max-cpu-loras fully-sharded-loras lora-dtype lora-extra-vocab-size "
    "enable-lora-bias enable-mixed-moe-lora-format enable-moe-shared-loras enable-tower-connector-lora "
    "lora-target-modules max-lora-cls-labels specialize-active-lora default-mm-loras":
        "there are no LoRA adapters, without which it asks for nothing",
    "data-parallel-hybrid-lb data-parallel-external-lb data-parallel-backend":
        "a frontend balances over all engines of `kvasir serve`: see docs/data-parallel.md for other layouts",
    "data-parallel-supervisor-port dp-supervisor-probe-interval-s dp-supervisor-probe-timeout-s "
    "dp-supervisor-probe-failure-threshold": "`kvasir serve` watches its processes itself",
    "distributed-timeout-seconds cpu-distributed-timeout-seconds": "use --worker-timeout",
    "max-long-partial-prefills long-prefill-token-threshold-adaptive": "use --long-prefill-token-threshold",
    "sleep-mode-backend sleep-mode-offload-cudagraph sleep-preserve-parameter-names":
        "there is no sleep mode, without which it asks for nothing",
    "offload-backend offload-group-size offload-num-in-group offload-params offload-prefetch-step "
    "cpu-offload-params":
        "weights are not offloaded",
    "allow-deprecated-quantization": "there is no quantization",
    "headless": "this command has no API server",
    "additional-config": "it is for plugins of vLLM",
    "enable-offline-docs": "the page of GET /docs needs no network",
    "structured-outputs-config":
        "llguidance compiles every grammar, and each request has its own options: see docs/structured-output.md",
    "reasoning-config": "the marks of the reasoning are those of --reasoning-parser",
})  # fmt: skip
"""Options that are accepted and change nothing → why."""

_NOT_YET: Final = "not supported yet"

REFUSED: Final = _each({
    "enable-lora lora-modules": f"LoRA adapters are {_NOT_YET}: merge the adapter into the model and serve that",
    "quantization quantization-config":
        f"quantized weights are {_NOT_YET}: serve the model in bfloat16, float16 or float32",
    "calculate-kv-scales": "the scales of an fp8 KV cache come from the checkpoint",
    "kv-cache-dtype-skip-layers": "all layers have the precision of --kv-cache-dtype",
    "override-attention-dtype": "attention has the precision of --dtype",
    "speculative-config spec-method spec-model spec-tokens diffusion-config":
        f"speculative decoding is {_NOT_YET}: leave it out, answers are the same",
    "tool-server": f"tools that the server calls itself are {_NOT_YET}",
    "reasoning-effort-map": "the chat template reads reasoning_effort as the request has it",
    "tokenizer-mode": "the tokenizer is always the fast one of tokenizer.json",
    "skip-tokenizer-init tokens-only":
        "a frontend always has a tokenizer; requests may send token ids, and kvasir.LLM takes them too",
    "max-logprobs": "requests may ask for at most 20",
    "logprobs-mode": "log probabilities are those of the model's unchanged logits",
    "return-tokens-as-token-ids": "is a field of a request here: return_tokens_as_token_ids",
    "return-sampling-mask enable-return-routed-experts enable-trace-replay aux-output-config":
        f"such outputs are {_NOT_YET}",
    "logits-processors logits-processor-pattern io-processor-plugin": f"plugins of vLLM are {_NOT_YET}",
    "runner convert task pooler-config override-pooler-config": f"models that do not generate text are {_NOT_YET}",
    "hf-config-path config-format": "config.json of the model is read: change it there, or by --hf-overrides",
    "hf-token": "every user of the machine can read arguments: set the variable HF_TOKEN",
    "rope-scaling": "use --hf-overrides '{\"rope_scaling\": {…}}'",
    "rope-theta": "use --hf-overrides '{\"rope_theta\": NUMBER}'",
    "disable-sliding-window":
        "use --hf-overrides '{\"sliding_window\": null}', or '{\"use_sliding_window\": false}' "
        "if config.json has that field",
    "model-class-overrides": "the class is the one that config.json names: change it there, or by --hf-overrides",
    "model-loader-extra-config ignore-patterns": "weights are safetensors files in the model's directory",
    "scheduler-cls": "the scheduler is Kvasir's own: see --scheduling-policy",
    "max-num-partial-prefills": "use --long-prefill-token-threshold",
    "max-num-active-seqs": "use --max-num-seqs",
    "max-num-queued-reqs": "use --max-live-requests, the requests that a frontend accepts",
    "max-num-scheduled-tokens": "use --max-num-batched-tokens",
    "kv-transfer-config kv-events-config ec-transfer-config ec-manager-config engram-config "
    "kv-offloading-backend kv-offloading-size weight-transfer-config":
        f"transfers of KV caches, of encodings and of weights are {_NOT_YET}",
    "kv-sharing-fast-prefill use-fp64-gumbel": "it changes answers in a way that Kvasir does not have",
    "cpu-offload-gb": "weights stay on their device: use a smaller model, or a smaller --dtype",
    "decode-context-parallel-size prefill-context-parallel-size": f"context parallelism is {_NOT_YET}",
    "enable-eplb enable-elastic-ep": f"balancing of experts is {_NOT_YET}",
    "enable-dbo": f"two overlapping batches are {_NOT_YET}",
    "enable-fault-tolerance fault-tolerance-config watchdog-config":
        "failures are always handled: see --worker-timeout, --slow-step and docs/operating.md",
    "enable-sleep-mode": f"a sleep mode is {_NOT_YET}: stop the service",
    "enable-prompt-embeds enable-mm-embeds mm-encoder-only": f"embeddings as prompts are {_NOT_YET}",
    "grpc grpc-port": "there is only HTTP",
    "enable-scale-out": "its endpoints are those of vLLM's disaggregated serving",
    "response-role": "the role of answers is assistant",
    "enable-force-include-usage": "ask for it in the request: stream_options with include_usage",
    "enable-per-request-metrics": "answers have no timings: GET /metrics has their distribution",
    "enable-log-outputs": "answers are never logged",
    "logging-config": "use --log-config-file, --log-level or --log-format",
    "fingerprint-mode fingerprint-value": f"{_NOT_YET}",
    "watermark-config": f"watermarks are {_NOT_YET}",
    "device-ids": "set CUDA_VISIBLE_DEVICES",
    "data-parallel-multi-port-external-lb": "start a `kvasir serve` for each rank: see docs/data-parallel.md",
    # of kvasir engine
    "nnodes node-rank master-addr master-port":
        "is an option of kvasir engine: see docs/multi-node.md for the commands",
    "data-parallel-rank data-parallel-size-local data-parallel-start-rank data-parallel-address "
    "data-parallel-rpc-port":
        "is for engines on several machines: start `kvasir frontend` on one and `kvasir engine` on each, "
        "see docs/data-parallel.md",
})  # fmt: skip
"""Options that are rejected → the reason, and the way to go."""

NEUTRAL: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "--config-format": ("auto", "hf"),
        "--convert": ("auto", "none"),
        "--cpu-offload-gb": ("0",),
        "--data-parallel-rank": ("0",),
        "--data-parallel-size-local": ("1",),
        "--data-parallel-start-rank": ("0",),
        "--decode-context-parallel-size": ("1",),
        "--fingerprint-mode": ("none",),
        "--hf-token": ("",),
        "--logprobs-mode": ("raw_logprobs",),
        "--max-logprobs": ("20",),
        "--max-num-partial-prefills": ("1",),
        "--nnodes": ("1",),
        "--node-rank": ("0",),
        "--prefill-context-parallel-size": ("1",),
        "--quantization": ("none", "None"),
        "--response-role": ("assistant",),
        "--runner": ("auto", "generate"),
        "--task": ("auto", "generate"),
        "--tokenizer-mode": ("auto", "hf"),
    }
)
"""Values of rejected options that ask for what Kvasir does anyway, and are accepted."""

UNSET: Final[Mapping[str, str]] = MappingProxyType(
    {"--long-prefill-token-threshold": "0", "--worker-cls": "auto", "--worker-extension-cls": ""}
)
"""Options of the same name here → the value by which vLLM means that it is not set."""

VALUES: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType(
    {
        "--log-level": {"trace": "debug", "critical": "error"},
        "--prefix-caching-hash-algo": {"sha256_cbor": "sha256"},
    }
)
"""Values of vLLM → the ones of the option of the same name here."""
