"""The roofline of the data sheet under a figure of a run, without any engine's habits: no run of it takes less."""

from __future__ import annotations

from llmviewer import api
from llmviewer.calibrate.e2e_rows import RequestCase, load
from llmviewer.calibrate.e2e_runs import RATE_METRICS, chip_of


def share_of_roofline(case: RequestCase, value: float) -> float:
    """Time of the roofline over the time that a figure states; above 1 where the figure is faster.

    value: in the unit of the case's metric, with a stated batch.  Of requests that arrive one by one, the first token
    takes at least the prefill of one of them.  Raises UserError.
    """
    alone = case.batching != "static" and case.metric == "ttft_ms"
    batch = 1.0 if alone else case.batch
    made = api.configuration(load(case.model), chip_of(case.hardware), efficiency="ideal", **dict(case.options))
    answer = made.answer(api.request(int(batch), int(max(case.input_len, 1.0)), int(max(case.output_len, 1.0))))
    seconds = float(answer.e2e_s if case.output_len else answer.ttft_s)
    if case.metric in RATE_METRICS:
        tokens = 1.0 if case.metric == "decode_tok_s" else case.output_len or case.input_len
        return value * (float(answer.tpot_s) if case.metric == "decode_tok_s" else seconds) / (batch * tokens)
    bound = {"ttft_ms": answer.ttft_s, "tpot_ms": answer.tpot_s}.get(case.metric, seconds)
    return float(bound) * 1e3 / value
