"""The panel of `--help` that shows the option of each technique."""

from __future__ import annotations

from llmviewer.language.option import Panel

#: Entry of a technique, or its folder for all others in it -> panel.
PANELS = {
    "quantization.quantization": Panel.COMMON,
    "kv_cache.contents:DTYPE": Panel.COMMON,
    "parallel.sizes:tensor_parallel_size": Panel.COMMON,
    "kv_cache.contents:prefix_cache": Panel.WORKLOAD,
    "sparsity.expert_skew:expert_skew_option": Panel.WORKLOAD,
    "sparsity.neurons:hot_neurons_option": Panel.MEMORY,
    "sparsity.early_exit:skip_layers_option": Panel.GENERATION,
    "sparsity.early_exit:EARLY_EXIT": Panel.GENERATION,
    "compression": Panel.PRECISION,
    "sparsity": Panel.PRECISION,
    "kv_cache": Panel.MEMORY,
    "offload": Panel.MEMORY,
    "kernels.set_figures:FIGURES": Panel.HARDWARE,
    "kernels.set_figures:POWER_LIMIT": Panel.HARDWARE,
    "kernels": Panel.KERNELS,
    "parallel": Panel.HARDWARE,
    "methods": Panel.GENERATION,
}


def panel_of(entry: str) -> Panel:
    """The panel of a technique by its registry entry; KeyError if neither it nor its folder or file has one."""
    return PANELS.get(entry) or PANELS[entry.replace(":", ".").partition(".")[0]]
