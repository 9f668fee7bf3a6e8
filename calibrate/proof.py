"""Kernels and layers of a model, measured beside predicted, with which `calibrate run --model` ends."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmviewer.calibrate import predict, validate, whole
from llmviewer.calibrate.predict import PredictionOptions
from llmviewer.calibrate.sources import read
from llmviewer.core.errors import UserError
from llmviewer.hardware import names

#: Name of the JSON document.
SCHEMA = "llmviewer.proof/1"
#: Reason for rows of a device without a chip spec.
UNKNOWN_CHIP = "no chip spec describes this device; `llmviewer calibrate fit` writes one of its measured rates"


def document(folder: Path, model: str, missing: Sequence[str]) -> dict[str, Any]:
    """Scores of every kind of kernel, and rows of layers and models, predicted with the shipped profiles.

    missing: what of the model was not measured.
    """
    import pandas as pd

    source = read(folder)
    device = str(source.environment.get("device", ""))
    try:
        names.find(device)
    except UserError:
        return {"schema": SCHEMA, "model": model, "scores": [], "layers": [], "missing": [UNKNOWN_CHIP, *missing]}
    options = PredictionOptions()
    frames = []
    for _, frame in source.kernels:
        predicted = predict.predict(frame, options)
        frames.append(predicted.assign(kernel=predict.kernel_names(predicted), group="all"))
    scores: list[dict[str, Any]] = []
    reasons: dict[str, int] = {}
    if frames:
        joined = pd.concat(frames, ignore_index=True)
        found = validate.validate(joined, ("device", "kernel", "group"), validate.KERNEL_COLUMNS).document()
        scores, reasons = found["scores"], found["not_predicted"]
    layers = list(whole.rows([source], options))
    listed = [*missing, *(f"{reason}: {rows} rows not predicted" for reason, rows in reasons.items())]
    return {"schema": SCHEMA, "model": model, "scores": scores, "layers": layers, "missing": listed}
