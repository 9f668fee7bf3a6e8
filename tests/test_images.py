"""Images in prompts: their tokens by the models' own processors, and the vision tower's passes before prefill."""

from __future__ import annotations

import pytest

from llmviewer import analyze, explain, size
from llmviewer.cli.analyze import operator_rows
from llmviewer.core.errors import UserError
from llmviewer.core.workload import prefill
from llmviewer.models.images import Images, Seen, parse, resized, seen, windows
from llmviewer.models.load import from_fields, load
from llmviewer.models.vision import vision_parameters

QWEN, GEMMA, RUN = "qwen2.5-vl-7b", "gemma-3-12b", {"input_len": 64, "output_len": 8}
#: Qwen2-VL-7B, https://huggingface.co/Qwen/Qwen2-VL-7B-Instruct/blob/main/config.json
QWEN2_VL = {
    "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": 3584,
    "intermediate_size": 18944, "num_attention_heads": 28, "num_hidden_layers": 28, "num_key_value_heads": 4,
    "vocab_size": 152064, "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "tie_word_embeddings": False, "hidden_act": "silu",
    "vision_config": {"depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "num_heads": 16, "in_chans": 3,
                      "hidden_size": 3584, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2},
}  # fmt: skip


def _seen(model: str, text: str) -> Seen:
    return seen(load(model), parse(text))[0]


@pytest.mark.parametrize(
    ("model", "size", "tokens"),
    [
        (QWEN, "1024x1024", 37 * 37),  # 1024 / 28 = 36.57: 1036 pixels
        (QWEN, "640x480", 23 * 17),  # 22.86 and 17.14
        (QWEN, "14x14", 2 * 2),  # below 3,136 pixels: scaled by 4 to 56 x 56
        (QWEN, "8000x4000", 181 * 90),  # above 12,845,056: both over 1.57836, 181.02 and 90.51 times 28
        ("qwen3-vl-4b", "1024x1024", 32 * 32),  # sides are multiples of 32
        (GEMMA, "1024x1024", 256),
        (GEMMA, "14x14", 256),
    ],
)
def test_tokens_of_an_image_are_those_of_the_models_processor(model: str, size: str, tokens: int) -> None:
    assert _seen(model, f"1x{size}").tokens == tokens


def test_sides_round_half_to_even_as_in_python() -> None:
    assert resized(Images(count=1, width=28 * 50 + 14, height=28 * 51 + 14), 28, 3136, 12845056) == (52, 50)


@pytest.mark.parametrize("name", [QWEN, GEMMA, "gemma-3-4b", "gemma-3-27b", "qwen3-vl-4b", "qwen3-vl-30b-a3b"])
def test_the_tower_stores_the_parameters_that_its_card_states(name: str) -> None:
    assert _seen(name, "1x512x512").tower.parameters == load(name).vision_parameters


def test_the_tower_of_qwen2_vl_stores_its_published_parameters() -> None:
    """675,759,104 of 8,291,375,616 in the checkpoint, the language model being that of Qwen2-7B, 7,615,616,512."""
    model = from_fields(QWEN2_VL)
    tower = seen(model, parse("1x1024x1024"))[0].tower
    assert tower.parameters == vision_parameters(QWEN2_VL, 3584) == 8291375616 - 7615616512


def test_windows_cover_every_patch_once() -> None:
    """74 patches a side are 9 windows of 8 and one of 2: 81 of 64 patches, 18 of 16, one of 4."""
    found = windows(74, 74, 8)
    assert sorted(found) == sorted([(81.0, 64.0), (9.0, 16.0), (9.0, 16.0), (1.0, 4.0)])
    assert sum(count * patches for count, patches in found) == 74 * 74


def test_matrix_work_of_the_tower_by_hand() -> None:
    """T = 5,476 patches, D = 1280, F = 3420: linear layers, full attention in 4 layers, windows in 28, merger."""
    one = _seen(QWEN, "1x1024x1024")
    t, d, f = 5476, 1280, 3420
    linear = 2 * t * (4 * d * d + 3 * d * f)
    full, narrow = 4 * t * t * d, 4 * d * (81 * 64**2 + 18 * 16**2 + 4**2)
    ends = 2 * t * 1176 * d + 2 * 1369 * (5120 * 5120 + 5120 * 3584)
    graph = one.tower.graph(prefill(1.0, float(one.patches)))
    counted = sum(float(op.matmul_flops) * block.repeats for block, op in graph)
    assert counted == 32 * linear + 4 * full + 28 * narrow + ends


def test_ttft_is_the_tower_and_the_prefill_of_a_prompt_with_its_tokens() -> None:
    """Three images of 1,369 tokens beside 64 of text."""
    one = analyze(QWEN, "h100", images="3x1024x1024", **RUN)
    text = analyze(QWEN, "h100", input_len=64 + 3 * 1369, output_len=8)
    (tower,) = one.to_dict()["images"]
    assert one.to_dict()["workload"]["input_len"] == 64 + 3 * 1369
    assert one.ttft_s == pytest.approx(text.ttft_s + tower["stage"]["time_s"])
    assert tower["stage"]["time_s"] > 0.2 * text.ttft_s
    assert one.tpot_s == text.tpot_s
    assert one.memory["weights_bytes"] == text.memory["weights_bytes"]  # which hold the tower already
    totals = [each.to_dict()["totals"]["flops"] for each in (one, text)]
    assert totals[0] - totals[1] == pytest.approx(tower["stage"]["flops"])
    low, high = one.intervals()["ttft_s"]["80"]
    shorter, longer = tower["stage"]["time_interval_s"]["80"]
    narrow, wide = text.intervals()["ttft_s"]["80"]
    assert (low, high) == (pytest.approx(shorter + narrow), pytest.approx(longer + wide))


def test_energy_of_the_tower_counts_with_the_prompt() -> None:
    one = analyze(QWEN, "h100", images="3x1024x1024", **RUN)
    text = analyze(QWEN, "h100", input_len=64 + 3 * 1369, output_len=8)
    joules = [each.joules_per_output_token * 8 for each in (one, text)]
    (tower,) = one.to_dict()["images"]
    watts = (joules[0] - joules[1]) / tower["stage"]["time_s"]
    assert 200.0 < watts < 700.001  # a board of 700 W at work


def test_images_of_several_sizes_and_batches_add_up() -> None:
    both = analyze(QWEN, "h100", images="2x1024x1024,1x640x480", batch_size=[1, 4], **RUN)
    parts = [analyze(QWEN, "h100", images=text, batch_size=4, **RUN) for text in ("2x1024x1024", "1x640x480")]
    seconds = [one["stage"]["time_s"] for one in both.to_dict(1)["images"]]
    assert seconds == [part.to_dict()["images"][0]["stage"]["time_s"] for part in parts]
    assert both.to_dict(0)["images"][0]["stage"]["time_s"] < seconds[0]


def test_explain_names_the_tower_in_ttft() -> None:
    tree = explain("ttft_s", QWEN, "h100", images="3x1024x1024", **RUN).to_dict()
    tower = next(child for child in tree["children"] if child["name"].startswith("vision tower"))
    assert sum(child["value"] for child in tree["children"]) == pytest.approx(tree["value"])
    (stage,) = analyze(QWEN, "h100", images="3x1024x1024", **RUN).to_dict()["images"]
    assert tower["value"] == pytest.approx(stage["stage"]["time_s"])


def test_attribution_names_the_tower() -> None:
    found = analyze(QWEN, "h100", images="1x1024x1024", **RUN).attribution("ttft_s")
    assert found.set_index("name")["kind"]["vision tower"] == "images"


def test_operators_of_the_tower_are_among_the_rows() -> None:
    one = analyze(QWEN, "h100", images="2x1024x1024,1x640x480", **RUN)
    rows = one.operators
    assert set(rows["stage"]) == {"vision tower 1024x1024", "vision tower 640x480", "prefill", "decode"}
    assert {row["stage"] for row in operator_rows(one.to_dict())} == set(rows["stage"])


def test_a_tensor_group_splits_the_layers_of_the_tower() -> None:
    alone, four = (analyze(QWEN, "h100", images="1x1024x1024", tensor_parallel_size=size, **RUN) for size in (1, 4))
    flops = [one.to_dict()["images"][0]["stage"]["matmul_flops"] for one in (alone, four)]
    assert flops[0] / 4 < flops[1] < flops[0] / 3.7  # patches and merger are on every device


@pytest.mark.parametrize(
    ("model", "options", "said"),
    [
        ("llama-3.1-8b", {}, "no vision tower that is modelled"),
        ("gemma-3-1b", {}, "no vision tower that is modelled"),
        (QWEN, {"images": "1024x1024"}, "COUNTxWIDTHxHEIGHT"),
        (QWEN, {"images": "0x1024x1024"}, "each at least 1"),
        (QWEN, {"images": "1x10000x10"}, "too oblong"),
        (QWEN, {"engine": "vllm"}, "presets time text"),
        (QWEN, {"batching": "continuous"}, "static batch"),
        (QWEN, {"pipeline_parallel_size": 2}, "one tensor group"),
        (QWEN, {"prefix_cache": 0.5}, "prefix hits"),
        (QWEN, {"offload": "weights=0.3"}, "offloading"),
    ],
)
def test_what_is_not_modelled_is_refused(model: str, options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError, match=said):
        analyze(model, "h100", **{"images": "1x64x64", **RUN, **options})


def test_notes_say_what_is_counted_and_what_is_not() -> None:
    text = " ".join(analyze(GEMMA, "h100", images="1x896x896", **RUN).warnings)
    assert "256 tokens each" in text
    assert "counted as causal" in text
    assert "only the language model" not in text


def test_a_sizing_of_text_has_no_note_of_images() -> None:
    found = size(
        "llama-3.2-1b", "l4", ttft="1s", request_rate=1, input_len=100, output_len=10, requests=100, max_gpus=1
    )
    assert not [note for note in found.notes if "image" in note]
