"""`make docs`: runs docs/guide/tour.ipynb and stores the outputs of its cells."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

PATH = Path(__file__).resolve().parent / "guide" / "tour.ipynb"


def executed() -> Any:
    """The executed notebook without metadata that differs from run to run."""
    notebook = nbformat.read(PATH, as_version=4)
    resources = {"metadata": {"path": str(PATH.parent.parent)}}
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources=resources, record_timing=False)
    client.execute(env={**os.environ, "COLUMNS": "120"})
    notebook.metadata = {
        "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
        "language_info": {"name": "python"},
    }
    return notebook


if __name__ == "__main__":
    nbformat.write(executed(), PATH)
