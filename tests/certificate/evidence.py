"""The test that holds each architecture, and what it compares: one row per entry of `models/architectures.py`.

The rows of decoders follow from the lists in `tests/test_library_defaults.py`, those of `EQUIVALENTS` from
`tests/test_other_architectures.py`; `BESIDE` names the tests of the others. An architecture with none of them is an
error here, so that a new entry needs a test.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmviewer.models.architectures import ARCHITECTURES, MULTIMODAL
from tests import test_library_defaults as defaults
from tests.test_first_forms import ALIKE
from tests.test_other_architectures import STATED, TEXT_PARTS
from tests.test_seq2seq_defaults import READ as SEQ2SEQ

from .equivalents import EQUIVALENTS
from .families import FAMILIES

EXACT = "exact"
_NO_CLASS = "no class to run: its code is not in the library"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The test of one architecture, as file::function, and what its parameters and FLOPs are held to."""

    test: str
    parameters: str
    flops: str


def _published(test: str) -> Evidence:
    """Remote code without a class of equal shapes."""
    return Evidence(test=test, parameters="the published number", flops=_NO_CLASS)


#: Architectures of neither list -> their tests.
BESIDE: dict[str, Evidence] = {
    **{
        name: Evidence(test=f"tests/test_certificate.py, row `{row}`", parameters=EXACT, flops=flops)
        for name, row, flops in (
            ("baichuan", "baichuan2-7b", "exact, by LlamaForCausalLM"),
            ("bailing_moe", "ling-mini-2.0", "exact, by Glm4MoeForCausalLM"),
            ("chatglm", "chatglm3-6b", "exact, by GlmForCausalLM"),
            ("internlm2", "internlm2-7b", "exact, by LlamaForCausalLM"),
            ("kimi_k2", "kimi-k2", "exact, by DeepseekV3ForCausalLM"),
            ("llada", "llada-8b", "exact, by LlamaForCausalLM"),
            ("minimax_text_01", "minimax-text-01", "exact, by MiniMaxForCausalLM"),
            ("xlm-roberta", "bge-m3", "exact, one pass"),
        )
    },
    **{
        name: Evidence(
            test="tests/test_encoders.py::test_parameters_and_flops_equal_those_of_the_library",
            parameters=EXACT,
            flops="exact, one pass",
        )
        for name in ("bert", "distilbert", "roberta")
    },
    "camembert": Evidence(
        test="tests/test_encoders.py::test_parameters_and_flops_equal_those_of_the_library",
        parameters="exact: the class of roberta by another name",
        flops="exact, one pass",
    ),
    **{
        name: Evidence(
            test="tests/test_seq2seq_defaults.py::test_matmul_flops_equal_those_of_the_library",
            parameters=EXACT,
            flops="exact: encoder, first pass, decode step",
        )
        for name in SEQ2SEQ
    },
    **{
        name: _published("tests/test_first_forms.py::test_a_first_form_has_the_published_parameters")
        for name in ("RefinedWeb", "RefinedWebModel", "deepseek", "hf_olmo", "mamba_ssm", "openelm")
    },
    **{
        name: Evidence(test=f"tests/test_first_forms.py::{test}", parameters="exact, by hand", flops=_NO_CLASS)
        for name, test in (
            ("deci", "test_groups_of_key_value_heads_may_differ_between_layers"),
            ("nemotron-nas", "test_layers_found_by_a_search_have_their_own_sizes"),
        )
    },
    "glm_ocr_text": Evidence(
        test="tests/test_first_forms.py::test_vision_models_for_documents_have_the_parameters_of_their_class",
        parameters=EXACT,
        flops="not run",
    ),
    "dit": Evidence(
        test="tests/test_dit.py::test_a_pass_has_the_published_multiply_adds",
        parameters="exact, by hand",
        flops="the published number",
    ),
    "grok-1": _published("tests/test_first_forms.py::test_grok_1_has_its_published_size"),
    "molmo": _published("tests/test_first_forms.py::test_molmo_has_a_table_of_its_own_for_pictures"),
    **{
        name: Evidence(
            test="tests/test_first_forms.py::test_another_name_of_an_architecture_counts_alike",
            parameters=f"exact: {other} by another name",
            flops=EXACT,
        )
        for name, other in ALIKE.items()
    },
    "minicpm": _published("tests/test_dense.py::test_sparse_configs_have_the_published_parameters"),
    "phi-msft": _published("tests/test_dense.py::test_sparse_configs_have_the_published_parameters"),
    "phi4mm": Evidence(
        test="tests/test_library_defaults.py::test_parameters_equal_those_of_the_library",
        parameters="exact: phi4_multimodal under the name of its first checkpoint",
        flops=EXACT,
    ),
    "step3_text": _published(
        "tests/test_other_architectures.py::test_step_3_has_the_316_billion_parameters_that_its_makers_print"
    ),
    "telechat": Evidence(
        test="tests/test_other_architectures.py::test_telechat_has_biases_on_the_last_matrices_only",
        parameters="exact, by hand",
        flops=_NO_CLASS,
    ),
}
_HYBRID = "tests/test_hybrid_configs.py::test_matmul_flops_equal_those_of_the_library"
#: Decoders whose default config cannot be run or built -> the test of another config, and what its FLOPs are.
OTHER_CONFIGS: dict[str, tuple[str, str]] = {
    "bamba": (_HYBRID, "exact, with a layer of attention"),
    "granitemoehybrid": (_HYBRID, "exact, with a layer of attention"),
    "lfm2_moe": (_HYBRID, "exact, with listed layers"),
    "openai-gpt": (
        "tests/test_dense.py::test_gpt_1_agrees_in_a_prefill",
        "exact in a prefill; its code keeps no cache",
    ),
    "rwkv": (_HYBRID, "exact, one sequence"),
    "zamba": (
        "tests/test_hybrid_configs.py::test_zamba_differs_by_the_products_with_broadcast_weights",
        "exact but for products that the library does not know as weights, which are counted by their formula",
    ),
}


def evidence(model_type: str) -> Evidence:
    """The test of one architecture.  Raises KeyError if it has none."""
    library = "tests/test_library_defaults.py::test_matmul_flops_equal_those_of_the_library"
    if model_type in defaults.NOT_RUN or model_type in defaults.NOT_BUILT:
        return _not_run(model_type)
    if model_type in defaults.DECODERS:
        return Evidence(test=library, parameters=EXACT, flops=EXACT)
    if model_type in STATED or model_type in TEXT_PARTS:
        family = EQUIVALENTS.get(model_type) or FAMILIES[model_type]
        test = "tests/test_other_architectures.py::test_matmul_flops_equal_those_of_the_class"
        return Evidence(test=test, parameters=EXACT, flops=f"exact, by {family.model_class}")
    return BESIDE[model_type]


def _not_run(model_type: str) -> Evidence:
    """A decoder whose default config the library cannot run or build, and the config that is compared instead."""
    if model_type in OTHER_CONFIGS:
        test, flops = OTHER_CONFIGS[model_type]
        return Evidence(test=test, parameters=EXACT, flops=flops)
    test = "tests/test_library_defaults.py::test_parameters_equal_those_of_the_library"
    return Evidence(test=test, parameters=EXACT, flops=f"not run: {defaults.NOT_RUN[model_type]}")


def architecture_rows() -> list[str]:
    """Table rows of all architectures, and of the decoders that are refused."""
    rows = []
    for name in sorted((*ARCHITECTURES, *defaults.REFUSED), key=str.lower):
        if name in defaults.REFUSED:
            test = "tests/test_library_defaults.py::test_refused_decoders_are_refused"
            rows.append(f"| {name} | refused | {defaults.REFUSED[name]} | {_shown(test)} |")
        else:
            found = evidence(name)
            rows.append(f"| {name} | {found.parameters} | {found.flops} | {_shown(found.test)} |")
    return rows


def wrapper_rows() -> list[str]:
    """Table rows of the wrappers by their language model."""
    texts = sorted(set(MULTIMODAL.values()))
    return [f"| {text} | {', '.join(name for name, of in MULTIMODAL.items() if of == text)} |" for text in texts]


def _shown(test: str) -> str:
    """File and function of a test without the folder, the function without `test_`."""
    file, _, function = test.removeprefix("tests/").partition("::")
    words = function.removeprefix("test_").replace("_", " ")
    return f"`{file}`: {words}" if words else file
