"""Options of `diagnose` beside those of a run."""

from __future__ import annotations

from llmviewer.calibrate.diagnosis.annotation import STAGES
from llmviewer.core import arguments
from llmviewer.language.option import Kind, Option

#: Options that state the work of a pass, with their defaults.
WORK = {
    "batch_size": Option(kind=Kind.WHOLE, help="Requests of a pass, if not marked."),
    "input_len": Option(kind=Kind.WHOLE, help="Prompt length, or keys of a decode step."),
    "output_len": Option(kind=Kind.WHOLE, help="Output length of a request."),
    "stage": Option(
        kind=Kind.WORD, default="", choices=("", *STAGES), closed=True, help="prefill or decode, if not marked."
    ),
    "passes": Option(kind=Kind.WHOLE, help="Forward passes that a table of kernels has."),
}
OWN = {
    "measured": Option(
        kind=Kind.TEXT,
        argument=True,
        help=f"A profile ({arguments.RECORDERS}), a result ({arguments.BENCHMARKS}), or samples.",
        json={
            "type": "string",
            "description": f"Path of a recorded run: a profile ({arguments.RECORDERS}), or the result of a benchmark"
            f" ({arguments.BENCHMARKS}).",
        },
    ),
    **WORK,
}
