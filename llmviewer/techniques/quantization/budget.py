"""`--quantization budget=2.75:w2a16/w3a16/w4a16`: formats of the matrices of a model within a budget of bits.

Source: LQ-LoRA, arXiv 2311.12023, section 3.2: an integer linear program over matrices and formats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from llmviewer.analysis.pipeline import layer_numbers
from llmviewer.core import data, files
from llmviewer.core.errors import UserError, printable, quoted, unknown
from llmviewer.core.frozen import frozen
from llmviewer.core.workload import decode
from llmviewer.formats.linear import is_linear, weight_access
from llmviewer.language import record
from llmviewer.language.grammar import Number
from llmviewer.models.model import Model
from llmviewer.techniques.layer_settings import AND, AT, BUDGET, OF, OR, ranges_of
from llmviewer.techniques.quantization.allocation import least_error
from llmviewer.techniques.quantization.grammar import parse_scheme
from llmviewer.techniques.technique import refusing

WHERE = "--quantization"
#: Between the parts of a budget.
THEN = ":"
BITS = Number("mean bits of a weight", 0.5, 32.0)
#: Layer and operator; a whole layer has the operator "".
Matrix: TypeAlias = tuple[int, str]
WHOLE = ""


@frozen
class _Budget:
    """Mean stored bits of a weight, format -> its stored bits, and the file of their errors; empty without one."""

    bits: float
    formats: Mapping[str, float]
    file: str = ""


def allocated(model: Model, text: str) -> str:
    """The formats by layer or operator, as --quantization takes them, that a text with a budget asks for.

    Every matrix of the model's linear layers has one of the formats, the sum of their errors is the least possible, and
    sum(weights x stored bits) <= budget x weights.  With a file of errors its keys say what has a format of its own: a
    layer or a single matrix.  Without one, a format of b stored bits has the error 2^(-2 b) per weight, the least that
    any has on weights of one normal distribution (its rate-distortion function, Shannon 1959).  All layers then count
    alike: the result mixes the formats around the budget, and the first layers have the most bits.  Raises UserError.
    """
    budget = _parsed(text)
    if model.encoder is not None:
        raise UserError(f"{WHERE}: a budget is for models of decoder layers alone; {model.name} is an encoder-decoder")
    least = min(budget.formats, key=lambda name: budget.formats[name])
    if budget.bits < budget.formats[least]:
        bits = budget.formats[least]
        raise UserError(f"{WHERE}: no format has {budget.bits:g} bits or fewer; {least} has {bits:g}, scales included")
    weights = _weights(model)
    table = _errors(budget) if budget.file else {}
    counts = Counter[Matrix]()
    for matrix, count in weights.items():
        counts[matrix if matrix in table else (matrix[0], WHOLE)] += count
    _check(table, counts, weights, budget.file)
    stored, sizes = np.array(list(budget.formats.values())), np.array(list(counts.values()), dtype=np.float64)
    errors = np.array([table[one] for one in counts]) if table else np.outer(sizes, np.exp2(-2.0 * stored))
    chosen = least_error(np.outer(sizes, stored), errors, budget.bits * float(sizes.sum()))
    return _written(tuple(counts), chosen, tuple(budget.formats))


def has_errors(text: str) -> bool:
    """Whether a text with a budget names a file of errors."""
    return bool(_parsed(text).file)


def _parsed(text: str) -> _Budget:
    bits, _, rest = text.removeprefix(BUDGET).partition(THEN)
    names, _, file = (part.strip() for part in rest.partition(THEN))
    if not names:
        raise UserError(
            f"{WHERE} is {quoted(text)}; allowed: budget=BITS:FORMAT/FORMAT[:FILE], as in budget=3:w2a16/w4a16"
        )
    formats = {}
    for name in names.split(OR):
        scheme = parse_scheme(name)
        if scheme.weights is None or not scheme.is_of_products:
            raise UserError(
                f"{WHERE}: {quoted(name)} cannot be allocated; allowed: formats of linear layers alone, w#a#"
            )
        formats[scheme.name] = scheme.weights.bits
    with refusing(WHERE):
        return _Budget(bits=BITS.read("budget", bits.strip()), formats=formats, file=file)


def _weights(model: Model) -> dict[Matrix, int]:
    """Number of weights of every matrix of the model's linear layers, in order of layers."""
    layers = [block for block in model.graph(decode(1.0, 0.0)).blocks if block.is_layer]
    found = {
        (number, operator.name): round(float(np.max(weight_access(operator).tensor.elements)))
        for block, numbers in zip(layers, layer_numbers(layers), strict=True)
        for number in numbers
        for operator in block.operators
        if is_linear(operator)
    }
    return dict(sorted(found.items(), key=lambda one: one[0][0]))


def _errors(budget: _Budget) -> dict[Matrix, list[float]]:
    """The table of a file: `LAYER` or `LAYER.OPERATOR`, also of modules (`model.layers.0.mlp.up_proj`) -> errors."""
    files.refuse_named(budget.file)
    path = Path(budget.file).expanduser()
    rows = data.read_json(path) if path.suffix == ".json" else data.read_yaml(path)
    found: dict[Matrix, list[float]] = {}
    for key, row in rows.items():
        where = f"{printable(path)}: {quoted(key)}"
        words = str(key).removesuffix(".weight").split(OF)
        numbers = [word for word in words if word.isdecimal()]
        if not numbers or not isinstance(row, dict):
            raise UserError(
                f"{where} is no layer or matrix with the error of each format, as in 0.q_proj: {{w4a16: 1.5}}"
            )
        matrix = int(numbers[-1]), WHOLE if words[-1].isdecimal() else words[-1]
        if matrix in found:
            raise UserError(f"{where}: this layer or matrix is there twice")
        with record.placed(where):
            found[matrix] = [record.at(f"error of {name}", record.NUMBER, row.get(name)) for name in budget.formats]
    return found


def _check(
    table: Mapping[Matrix, Sequence[float]], counts: Mapping[Matrix, int], weights: Mapping[Matrix, int], file: str
) -> None:
    """Raise UserError unless the table has every matrix of the model, by itself or with its layer, and no others."""
    if not table:
        return
    where = printable(file)
    for layer, name in counts:
        if (layer, name) not in table:
            missing = next(_name(one) for one in weights if one[0] == layer and one not in table)
            raise UserError(f"{where}: the errors of {missing} are missing")
    for one in table:
        if one not in counts:
            raise unknown("layer or matrix", _name(one), [_name(other) for other in (*weights, *counts)], where=where)


def _name(matrix: Matrix) -> str:
    return f"{matrix[0]}{OF * bool(matrix[1])}{matrix[1]}"


def _written(units: Sequence[Matrix], chosen: Sequence[int], names: Sequence[str]) -> str:
    """The choice as settings: the most frequent format for all, and the others for ranges of layers and operators."""
    common = Counter(chosen).most_common(1)[0][0]
    settings = [names[common]]
    for option in sorted(set(chosen) - {common}):
        layers: dict[str, list[int]] = {}
        for (layer, name), one in zip(units, chosen, strict=True):
            if one == option:
                layers.setdefault(name, []).append(layer)
        targets = (f"{one}{OF * bool(name)}{name}" for name, numbers in layers.items() for one in ranges_of(numbers))
        settings.append(f"{names[option]}{AT}{OR.join(targets)}")
    return AND.join(settings)
