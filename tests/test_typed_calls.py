"""A type checker reads the public calls as a user's editor does: right calls pass, and each wrong argument is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.imports import ROOT

#: Lines with `# wrong` have an argument of another type; all others are as in docs/guide/.
CALLS = """\
import llmviewer as lv

plain = lv.analyze("llama-3.1-8b", "h100", batch_size=8, input_len="4k", tensor_parallel_size=2, sequence_parallel=True)
lv.analyze("llama-3.1-8b", "h100", tensor_parallel_size="two")  # wrong
lv.analyze("llama-3.1-8b", "h100", spatial="yes")  # wrong
lv.analyze("llama-3.1-8b", "h100", quantisation="w4a16")  # wrong
lv.analyze("llama-3.1-8b", 100)  # wrong
lv.sweep("llama-3.1-8b", ["h100", "h200"], batch_size="1:64:*2", quantization=["none", "fp8"])
lv.sweep("llama-3.1-8b", "h100", batch_size=1.5)  # wrong
lv.compare("llama-3.1-8b", ["h100", "h200"], tensor_parallel_size=[1, 2])
lv.compare("llama-3.1-8b", "h100", batch_size="many", engine=3)  # wrong
lv.simulate("llama-3.1-8b", "h100", request_rate=8.0, input_len=1024, output_len=128)
lv.size("llama-3.1-8b", hardware="h100", request_rate=8.0, input_len=1024, output_len=128)
lv.plot("memory", plain, theme="dark", title="Memory")
lv.plot("memory", plain, tilte="Memory")  # wrong
lv.plot("pareto", plain, metric=3)  # wrong
"""


@pytest.mark.slow
def test_a_type_checker_finds_wrong_arguments_and_no_others(tmp_path: Path) -> None:
    mypy = pytest.importorskip("mypy.api")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    options = ("--config-file", str(ROOT / "pyproject.toml"), "--cache-dir", str(ROOT / ".mypy_cache"))
    printed, problems, _ = mypy.run([*options, "--hide-error-context", "--no-pretty", str(file)])
    assert not problems
    found = {int(line.split(":")[1]) for line in printed.splitlines() if line.startswith(str(file)) and "error" in line}
    wrong = {number for number, line in enumerate(CALLS.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, printed
