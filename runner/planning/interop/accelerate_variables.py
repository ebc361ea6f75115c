"""Accelerate's settings and the variables that carry them to a script, for both directions.

`accelerate launch` hands everything but counts and addresses to the script by these variables, so that the same script
under torchrun does the same (accelerate 1.15, utils/launch.py).
"""

from __future__ import annotations

MIXED_PRECISION = "ACCELERATE_MIXED_PRECISION"
DEBUG = "ACCELERATE_DEBUG_MODE"
CPU_AFFINITY = "ACCELERATE_CPU_AFFINITY"

_DEEPSPEED = {
    "deepspeed_config_file": "ACCELERATE_DEEPSPEED_CONFIG_FILE",
    "deepspeed_moe_layer_cls_names": "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "zero3_init_flag": "ACCELERATE_DEEPSPEED_ZERO3_INIT",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
}
_DYNAMO = ("backend", "mode", "use_dynamic", "use_fullgraph", "use_regional_compilation")
_FSDP = (
    "activation_checkpointing", "activation_checkpointing_offload", "auto_wrap_policy", "backward_prefetch",
    "cpu_ram_efficient_loading", "forward_prefetch", "ignored_modules", "min_num_params", "offload_params",
    "reshard_after_forward", "sharding_strategy", "state_dict_type", "sync_module_states", "use_orig_params", "version",
)  # fmt: skip
_PARALLELISM = (
    "cp_backend", "cp_comm_strategy", "cp_size", "dp_replicate_size", "dp_shard_size", "sp_attn_implementation",
    "sp_backend", "sp_seq_length", "sp_seq_length_is_variable", "sp_size", "tp_size",
)  # fmt: skip

SECTIONS = {
    "deepspeed_config": _DEEPSPEED,
    "dynamo_config": {f"dynamo_{name}": f"ACCELERATE_DYNAMO_{name.upper()}" for name in _DYNAMO},
    "fsdp_config": {
        **{f"fsdp_{name}": f"FSDP_{name.upper()}" for name in _FSDP},
        "fsdp_transformer_layer_cls_to_wrap": "FSDP_TRANSFORMER_CLS_TO_WRAP",
    },
    "parallelism_config": {f"parallelism_config_{n}": f"PARALLELISM_CONFIG_{n.upper()}" for n in _PARALLELISM},
}
"""Section → its keys, each with its variable."""
SWITCHES = {
    "deepspeed_config": "ACCELERATE_USE_DEEPSPEED",
    "fsdp_config": "ACCELERATE_USE_FSDP",
    "parallelism_config": "ACCELERATE_USE_PARALLELISM_CONFIG",
}
"""Section → the variable that says whether it is used."""
