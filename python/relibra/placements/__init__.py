"""Placements of experts in other systems' forms: EPLB, SGLang, TensorRT-LLM, vLLM, vLLM-Ascend."""

from relibra.placements.ascend import read_ascend, write_ascend
from relibra.placements.deepseek import from_eplb, to_eplb
from relibra.placements.placement import EMPTY, Placement
from relibra.placements.sglang import (
    read_sglang,
    read_sglang_counts,
    widen_to_all_layers,
    write_sglang,
)
from relibra.placements.tensorrt_llm import (
    LoadBalancerFile,
    read_tensorrt_llm,
    write_tensorrt_llm,
)
from relibra.placements.vllm import preserve_slots, read_vllm, write_vllm

__all__ = [
    "EMPTY",
    "LoadBalancerFile",
    "Placement",
    "from_eplb",
    "preserve_slots",
    "read_ascend",
    "read_sglang",
    "read_sglang_counts",
    "read_tensorrt_llm",
    "read_vllm",
    "to_eplb",
    "widen_to_all_layers",
    "write_ascend",
    "write_sglang",
    "write_tensorrt_llm",
    "write_vllm",
]
