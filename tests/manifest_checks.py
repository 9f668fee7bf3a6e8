"""Checks of launch manifests against the argument lists and schemas kept in tests/data/manifests."""

from __future__ import annotations

import functools
import json
import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "data" / "manifests"
CORE = "1.34"


@functools.cache
def facts(name: str) -> Any:
    """One file of tests/data/manifests."""
    return yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8"))


KINDS = {
    "int": lambda text: re.fullmatch(r"-?\d+|\$\w+|\$\(\(.*\)\)", text),
    "number": lambda text: re.fullmatch(r"\d*\.?\d+", text),
    "text": bool,
    "json": json.loads,
}


def check_flags(words: Sequence[str], lists: Sequence[dict[str, Any]]) -> None:
    """Every flag is one that the version has, with a value that it takes.  words: flags and values.  lists: in turn."""
    values = {name: kind for one in lists for name, kind in one["values"].items()}
    names = {name for one in lists for name in one["names"].split()} | {"model"}
    at = 0
    while at < len(words):
        assert words[at].startswith("--"), f"{words[at]!r} follows no flag"
        flag = words[at].removeprefix("--")
        assert flag in names, f"--{flag} is no argument of this version"
        assert flag in values, f"--{flag} has no values in tests/data/manifests"
        kind = values[flag]
        at += 1 if kind == "switch" else 2
        if kind != "switch":
            value = words[at - 1]
            assert value in kind if isinstance(kind, list) else KINDS[kind](value), f"--{flag} {value}"


def check_program(words: Sequence[str]) -> list[str]:
    """Check the command of an engine's server; the model it serves is the only word returned."""
    words = list(words)
    if words[0] == "srun":
        del words[: words.index("trtllm-llmapi-launch") + 1]
    for program, name in (
        (["vllm", "serve"], "vllm"),
        (["python3", "-m", "sglang.launch_server", "--model-path"], "sglang"),
        (["trtllm-serve"], "trtllm"),
    ):
        if words[: len(program)] == program:
            check_flags(words[len(program) + 1 :], [facts(name)])
            return [words[len(program)]]
    raise AssertionError(f"no server starts with {words[:4]}")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each server's command in a shell text, as a shell would split them; comments and files are left."""
    text = re.sub(r"^cat > \S+ <<'END'\n.*?^END$", "", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    for line in lines:
        yield shlex.split(line)


def check_schema(data: Any, schema: Any) -> None:
    """Check data against a schema of tests/data/manifests; its `core` parts against the core Kubernetes types."""
    import jsonschema

    jsonschema.Draft202012Validator(schema).validate(data)
    for kind, part in _core_parts(data, schema):
        if kind == "PodTemplateSpec":
            check_pod(part)
        else:
            spec = {key: value for key, value in part.items() if key != "mainContainer"}
            containers = [{"name": "main"} | part["mainContainer"]]
            check_pod({"metadata": {"labels": {"a": "b"}}, "spec": spec | {"containers": containers}})


def _core_parts(data: Any, schema: Any) -> Iterator[tuple[str, Any]]:
    if "core" in schema:
        yield schema["core"], data
    elif isinstance(data, dict):
        for key, value in data.items():
            below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(below, dict):
                yield from _core_parts(value, below)


def check_pod(template: dict[str, Any]) -> None:
    """Check a pod template within a Deployment."""
    labels = template["metadata"]["labels"]
    spec = {"selector": {"matchLabels": labels}, "template": template}
    check_core({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": spec})


def check_core(data: dict[str, Any]) -> None:
    """Check an object of core Kubernetes, unknown fields included."""
    import kubernetes_validate
    from kubernetes_validate import utils

    if not hasattr(utils.schema_contents, "cache_info"):  # a file of megabytes that each check would read again
        utils.schema_contents = functools.cache(utils.schema_contents)
    kubernetes_validate.validate(data, CORE, strict=True)
