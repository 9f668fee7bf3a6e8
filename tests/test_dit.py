"""DiT, the diffusion transformer (arXiv 2212.09748): a denoising step is one bidirectional pass over latent patches."""

from __future__ import annotations

import pytest

from llmviewer import analyze
from llmviewer.core.errors import UserError
from llmviewer.core.workload import prefill
from llmviewer.models.load import from_fields, load
from llmviewer.models.model import Model

SMALL = {"model_type": "dit", "architectures": ["DiT"], "hidden_size": 8, "depth": 2, "num_heads": 2, "patch_size": 2}


def _matmul_flops(model: Model, images: float) -> float:
    """Matmul FLOPs of one denoising step of whole images."""
    graph = model.graph(prefill(images, model.max_context))
    return sum(float(op.matmul_flops) * block.repeats for block, op in graph)


@pytest.mark.parametrize(
    ("name", "giga"),
    [("dit-s-2", 6.06), ("dit-b-2", 23.01), ("dit-l-2", 80.71), ("dit-xl-2", 118.64), ("dit-xl-2-512", 524.60)],
)
def test_a_pass_has_the_published_multiply_adds(name: str, giga: float) -> None:
    """Tables 4 and 6 of arXiv 2212.09748 print "Gflops" that are multiply-adds, half of our FLOPs."""
    assert _matmul_flops(load(name), 1.0) / 2e9 == pytest.approx(giga, rel=2e-3)


def test_patches_of_four_make_a_quarter_of_the_tokens() -> None:
    """DiT-XL/4 of the same table: 64 tokens, 29.05 G multiply-adds."""
    model = from_fields({**SMALL, "hidden_size": 1152, "depth": 28, "num_heads": 16, "patch_size": 4})
    assert model.max_context == 64
    assert _matmul_flops(model, 1.0) / 2e9 == pytest.approx(29.05, rel=2e-3)


def test_multiply_adds_of_xl_2_by_hand() -> None:
    """256 tokens, width 1152, 28 blocks: 12 D^2 per token, attention 2 T^2 D, adaLN 6 D^2 per image."""
    tokens, d = 256, 1152
    block = 12 * d * d * tokens + 2 * tokens**2 * d + 6 * d * d
    ends = 16 * d * tokens + 32 * d * tokens + 256 * d + d * d + 2 * d * d
    assert _matmul_flops(load("dit-xl-2"), 1.0) == 2 * (28 * block + ends)


def test_parameters_by_hand() -> None:
    """Width 8: block 18 x 64 + 15 x 8; patches 16 x 8 + 8; time 256 x 8 + 8 + 64 + 8; 1001 classes, 256 positions."""
    blocks = 2 * (18 * 64 + 15 * 8)
    inputs = (16 * 8 + 8) + (256 * 8 + 8 + 64 + 8) + 1001 * 8 + 256 * 8
    final = (8 * 32 + 32) + (2 * 64 + 2 * 8)
    assert from_fields(SMALL).parameters == blocks + inputs + final


def test_without_guidance_in_training_there_is_no_empty_class() -> None:
    assert from_fields(SMALL).parameters - from_fields({**SMALL, "class_dropout_prob": 0.0}).parameters == 8


def test_guidance_doubles_the_work_of_an_image() -> None:
    """Two sequences per image, one of them of the empty class."""
    model = load("dit-s-2")
    assert _matmul_flops(model, 2.0) == 2.0 * _matmul_flops(model, 1.0)


def test_every_patch_sees_every_patch_and_nothing_is_cached() -> None:
    graph = load("dit-s-2").graph(prefill(1.0, 256.0))
    assert all(not block.states for block in graph.blocks)
    assert sum(float(op.masked_flops) for _, op in graph) == 0.0


def test_questions_about_decode_are_refused() -> None:
    with pytest.raises(UserError, match=r"dit-xl-2 runs one bidirectional pass, no decode, .*output_len 1"):
        analyze("dit-xl-2", "h100-sxm", input_len=256)


@pytest.mark.parametrize("name", ["dit-xl-2", "bert-base"])
@pytest.mark.parametrize(
    ("option", "text", "refused"),
    [
        ("speculative", "ngram,tokens=3,acceptance=0.5", "speculation"),
        ("branches", "apar,branches=3", "branches"),
        ("batching", "continuous", "continuous batching"),
    ],
)
def test_what_changes_decoding_is_refused(name: str, option: str, text: str, refused: str) -> None:
    with pytest.raises(UserError, match=f"not possible: .*{refused}"):
        analyze(name, "h100-sxm", input_len=256, output_len=1, **{option: text})


def test_a_whole_image_is_within_the_context_of_the_model() -> None:
    result = analyze("dit-xl-2", "h100-sxm", input_len=256, output_len=1, batch_size=2)
    assert not [note for note in result.warnings if "beyond" in note]
    assert [note for note in result.warnings if "denoising step" in note]


def test_tensor_parallelism_splits_heads_and_channels_and_repeats_the_modulation() -> None:
    """The 6 D^2 of adaLN are on both devices, of 18 D^2 per block."""
    one, two = (
        analyze("dit-xl-2", "h100-sxm", input_len=256, output_len=1, tensor_parallel_size=size).memory["weights_bytes"]
        for size in (1, 2)
    )
    block, width = 28 * 2 * 1152**2, 1152
    assert one - two == pytest.approx(6 * block + 28 * (3 * width + 4 * width), rel=1e-3)


@pytest.mark.parametrize("wrong", [{"num_heads": 3}, {"patch_size": 5}])
def test_sizes_that_do_not_divide_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="must be a multiple"):
        from_fields({**SMALL, **wrong})
