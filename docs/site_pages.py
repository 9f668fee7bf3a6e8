"""Pages of the site (`make site`), a hook of MkDocs: Markdown and notebooks of the repository, each at its path."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

ROOT = Path(__file__).resolve().parent.parent
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")]
ROOMS = {"Guide": "docs/guide", "Reference": "docs/reference", "Evidence": "docs/evidence"}
STYLE = "docs/site.css"
#: Pages that answer without a server, as `make catalogue` leaves them; there need be none.
MODELS = ROOT / "build/models"
TARGET = re.compile(r"\]\(([^()#\s]+)")
HEADING = re.compile(r"^# (.+)$", re.MULTILINE)


def notebook_as_markdown(path: Path) -> str:
    """The cells of a notebook and their stored outputs: text, tables as HTML, pictures as data."""
    parts = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
            if "image/png" in data:
                picture = data["image/png"].strip()
                parts.append(f'<img alt="the picture of the cell above" src="data:image/png;base64,{picture}">')
            elif "text/html" in data:
                # a blank line would end the block of HTML
                parts.append("<div>" + re.sub(r"\n\s*\n", "\n", data["text/html"]) + "</div>")
            elif text := data.get("text/plain") or "".join(output.get("text", [])):
                parts.append(f"```text\n{text}\n```")
    return "\n\n".join(parts)


def pages() -> dict[str, str]:
    """Each page's path in the repository, as Markdown: its text."""
    notebooks = (ROOT / "docs").glob("*/*.ipynb")
    texts = [*FRONT, ROOT / "docs/index.md", *(path for room in ROOMS.values() for path in (ROOT / room).glob("*.md"))]
    found = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in texts}
    found |= {str(path.relative_to(ROOT).with_suffix(".md")): notebook_as_markdown(path) for path in notebooks}
    return {uri: text.replace(".ipynb)", ".md)") for uri, text in found.items()}


def title(text: str) -> str:
    """The first heading of a page, without marks."""
    heading = HEADING.search(text)
    return heading[1].replace("`", "") if heading else "Page"


def on_config(config: Any) -> Any:
    """Make the menu: the front, the page by role, then each folder by the titles of its pages."""
    texts = pages()
    rooms = [
        {room: [{title(text): uri} for uri, text in sorted(texts.items()) if uri.startswith(folder + "/")]}
        for room, folder in ROOMS.items()
    ]
    front = [{"llmviewer": "README.md"}, {"By role": "docs/index.md"}]
    project = [{title(texts[path.name]): path.name} for path in FRONT[1:]]
    config.nav = [{"Start": front}, *rooms, {"Project": project}]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of docs/ by the pages, and by what they show or link to, at their paths in the repository."""
    texts = pages()
    taken = Files([file for file in files if file.src_dir != config.docs_dir])
    taken.append(File.generated(config, STYLE, abs_src_path=str(ROOT / STYLE)))
    for uri, text in texts.items():
        taken.append(File.generated(config, uri, content=text))
        for target in TARGET.findall(text):
            path = ((ROOT / uri).parent / target).resolve()
            linked = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else ""
            if path.is_file() and linked not in texts and taken.get_file_from_path(linked) is None:
                taken.append(File.generated(config, linked, abs_src_path=str(path)))
    for path in sorted(MODELS.glob("*.html")):
        taken.append(File.generated(config, f"models/{path.name}", abs_src_path=str(path)))
    return taken


def on_nav(nav: Navigation, config: Any, files: Files) -> Navigation:
    """Add the pages of models to the menu."""
    if files.get_file_from_path("models/index.html"):
        nav.items.insert(1, Link("Models and chips", "models/index.html"))
    return nav
