"""Figures and tables of the survey "LLM Inference Unveiled" (arXiv 2402.16363) made with LLM-Viewer, recomputed.

One file per figure: its queries, rows of their results, a plot, and the survey's conclusions as relations of rows.
"""

from __future__ import annotations

from importlib import import_module

from llmviewer.reports.survey.figure import SurveyFigure

#: Modules of the figures in the order of the survey.
FIGURES = (
    "table_1",
    "figure_5",
    "figure_6",
    "figure_7",
    "figure_8",
    "figure_9",
    "figure_11",
    "figure_15",
    "figure_16",
    "figure_18",
    "figure_19",
    "figure_20",
)


def load(name: str) -> SurveyFigure:
    """Returns the figure of a name in FIGURES."""
    found: SurveyFigure = import_module(f"llmviewer.reports.survey.{name}").FIGURE
    return found
