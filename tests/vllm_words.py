"""What vLLM says when it cannot, word for word (0.32's sources; sizes are made up)."""

from __future__ import annotations

from tuner.errors import ConfigRejected, EngineFault

KV_LEN = (
    "ValueError: To serve at least one request with the model's max seq len (8192), (9.0 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (4.5 GiB). Based on the "
    "available memory, the estimated maximum model length is 4096. Try increasing "
    "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine. See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
NO_BLOCKS = (
    "ValueError: No available memory for the cache blocks. Try increasing "
    "`gpu_memory_utilization` when initializing the engine (this flag also controls CPU memory "
    "reservation on the CPU backend, despite its name). See "
    "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
)
FREE = (
    "ValueError: Free memory on device cuda:0 (3.12/79.1 GiB) on startup is less than desired GPU "
    "memory utilization (0.92, 72.77 GiB). Decrease GPU memory utilization or reduce GPU memory "
    "used by other processes."
)
CPU_FREE = (
    "ValueError: Available memory on node 0 (5.2/15.6 GiB) on startup is less than desired CPU "
    "memory utilization (0.92, 14.35 GiB). On the CPU backend, the `--gpu-memory-utilization` flag "
    "controls the fraction of CPU memory reserved (despite its name). To resolve: decrease "
    "`--gpu-memory-utilization` (e.g. `--gpu-memory-utilization 0.5`) or reduce CPU memory used by "
    "other processes."
)
SAMPLER = (
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 1024 dummy requests. "
    "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
)
TOO_LONG = (
    "ValueError: User-specified max_model_len (100000) is greater than the derived max_model_len "
    "(max_position_embeddings=4096 or model_max_length=None in model's config.json). To allow"
)

MESSAGES = [
    (KV_LEN, ConfigRejected, "out_of_memory"),
    (KV_LEN.replace("model's", "models's"), ConfigRejected, "out_of_memory"),
    (NO_BLOCKS, ConfigRejected, "out_of_memory"),
    (CPU_FREE, ConfigRejected, "out_of_memory"),
    (SAMPLER, ConfigRejected, "out_of_memory"),
    (FREE, EngineFault, "gpu_busy"),
    (TOO_LONG, ConfigRejected, "model_too_long"),
    (
        "ValueError: No common block size for 8 (CPU_ATTN: [MultipleOf(32)])",
        ConfigRejected,
        "unsupported_by_hardware",
    ),
    (
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node. "
        "If this is intentional and you are using:",
        ConfigRejected,
        "unsupported_by_hardware",
    ),
    (
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this "
        "configuration. Reason: ['kv_cache_dtype not supported']",
        ConfigRejected,
        "unsupported_by_hardware",
    ),
    (
        "ValueError: No valid attention backend found for cuda with AttentionSelectorConfig(). "
        "Reasons: {FLASH_ATTN: [head_size not supported]}.",
        ConfigRejected,
        "unsupported_by_hardware",
    ),
    (
        "ValueError: modelopt_fp4 quantization is currently not supported in cpu.",
        ConfigRejected,
        "unsupported_by_hardware",
    ),
    (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local "
        "network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: "
        "address already in use",
        EngineFault,
        "port_taken",
    ),
]
