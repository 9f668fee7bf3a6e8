"""llmviewer: how fast an LLM runs on a chip, why, and what to change.

import llmviewer as lv
lv.analyze("llama-2-7b", "a6000", batch_size=[1, 8, 64], input_len=2048).to_frame()
"""

from __future__ import annotations

import os

from llmviewer.core.version import __version__

# A clone without symbolic links (Windows' default) has a text file where the link to ../calibrate would be; its folders
# are then found beside the package.
if not os.path.isdir(__path__[0] + "/calibrate"):  # noqa: PTH112 (`pathlib` takes long to import)
    __path__.append(os.path.dirname(__path__[0]))  # noqa: PTH120

__all__ = [
    "Advice",
    "Check",
    "Comparison",
    "Crossover",
    "Diagnosis",
    "Elasticities",
    "Explanation",
    "Fitting",
    "Required",
    "Result",
    "Simulation",
    "Sizing",
    "Sweep",
    "Training",
    "UserError",
    "Why",
    "__version__",
    "advise",
    "analyze",
    "check",
    "compare",
    "crossover",
    "diagnose",
    "elasticity",
    "explain",
    "fit",
    "launch_line",
    "list_engines",
    "list_hardware",
    "list_models",
    "list_techniques",
    "page",
    "plot",
    "require",
    "simulate",
    "size",
    "sweep",
    "train",
    "why",
]

TYPE_CHECKING = False  # `typing` takes as long to import as all of this, and Ctrl-C there prints a traceback
if TYPE_CHECKING:
    from typing import Any

    from llmviewer.api import (
        analyze,
        compare,
        crossover,
        list_engines,
        list_hardware,
        list_models,
        list_techniques,
        sweep,
    )
    from llmviewer.api.calls import explain
    from llmviewer.calibrate.diagnosis.call import diagnose
    from llmviewer.calibrate.diagnosis.diagnosis import Diagnosis
    from llmviewer.core.answer import Answer
    from llmviewer.core.errors import UserError
    from llmviewer.planning.advise import Advice, advise
    from llmviewer.planning.call import size
    from llmviewer.planning.contract import Check, check
    from llmviewer.planning.elasticity import Elasticities, elasticity
    from llmviewer.planning.fitting import Fitting, fit
    from llmviewer.planning.manifests.launch_line import launch_line
    from llmviewer.planning.require import Required, require
    from llmviewer.planning.sizing import Sizing
    from llmviewer.planning.train import Training, train
    from llmviewer.planning.why import Why, why
    from llmviewer.reports.offline.page import page
    from llmviewer.reports.plots.plot import plot
    from llmviewer.result.comparison import Comparison
    from llmviewer.result.crossover import Crossover
    from llmviewer.result.explanation.explain import Explanation
    from llmviewer.result.result import Result
    from llmviewer.result.sweep import Sweep
    from llmviewer.simulation.call import simulate
    from llmviewer.simulation.result import Simulation

#: Modules of public names that are of no question.
_HOME = {
    "UserError": "llmviewer.core.errors",
    "page": "llmviewer.reports.offline.page",
    "plot": "llmviewer.reports.plots.plot",
    "launch_line": "llmviewer.planning.manifests.launch_line",
    **dict.fromkeys(("list_engines", "list_hardware", "list_models", "list_techniques"), "llmviewer.api"),
}


def __getattr__(name: str) -> Any:
    """A public name, imported when first used: the command line sets up the process before numpy loads."""
    from importlib import import_module

    from llmviewer.questions import home_of

    home = _HOME.get(name) or home_of(name)
    if not home:
        raise AttributeError(f"module 'llmviewer' has no attribute '{name}'")
    found = getattr(import_module(home), name)
    if name != "UserError":
        import_module("llmviewer.core.answer").Answer.view = staticmethod(_view)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__


def _view(answer: Answer, kind: str) -> str:
    """Text or HTML of an answer.  Views stand above answers, so the package hands this one down."""
    from llmviewer.questions import QUESTIONS
    from llmviewer.reports import notebook, terminal

    page = QUESTIONS[answer.QUESTION].page_of(answer)
    return notebook.html(page) if kind == "html" else terminal.text(page, terminal.Screen.plain())
