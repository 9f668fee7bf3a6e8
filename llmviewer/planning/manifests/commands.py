"""Shell commands of a configuration for one replica of each pool, and manifests as text: quoted, commented."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import yaml

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import sglang, trtllm, vllm
from llmviewer.planning.manifests.flags import Cluster, Expression, Launch
from llmviewer.planning.manifests.serving import Serving
from llmviewer.timing.engine import load


def word(text: str) -> str:
    """One word of a shell command; only an Expression is expanded by the shell."""
    return f'"{text}"' if isinstance(text, Expression) else shlex.quote(text)


def line(words: Sequence[str]) -> str:
    """A shell command on one line."""
    return " ".join(word(one) for one in words)


def command(program: Sequence[str], flags: Sequence[str]) -> str:
    """A shell command with one flag and its value per line."""
    parts = [line(program)]
    for flag in flags:
        if flag.startswith("--"):
            parts.append(word(flag))
        else:
            parts[-1] += f" {word(flag)}"
    return " \\\n  ".join(parts)


def file(name: str, text: str) -> str:
    """The shell command that writes a file."""
    return f"cat > {shlex.quote(name)} <<'END'\n{text}END"


def comments(lines: Iterable[str]) -> str:
    """Lines of a comment; a line break within one would end it."""
    return "".join(f"# {' '.join(one.split())}\n" for one in lines)


def documents(objects: Sequence[Mapping[str, Any]], notes: Iterable[str]) -> str:
    """YAML documents below a comment."""
    texts = (yaml.dump(one, Dumper=_Plain, sort_keys=False, width=1000, allow_unicode=True) for one in objects)
    return comments(notes) + "---\n".join(texts)


class _Plain(yaml.SafeDumper):
    """A writer of YAML that repeats equal objects, since Kubernetes manifests are read without anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        """No object gets an anchor."""
        return True


def version_of(serving: Serving) -> str:
    """The version that the prediction is of: as asked, the newest that the preset knows, or else that of the flags."""
    known = serving.engine_version or load(serving.engine).known_version or ENGINES[serving.engine].TABLES.version
    return str(known) + ".0" * (2 - known.count("."))


def heading(serving: Serving, launch: Launch, inside: str = "") -> list[str]:
    """The lines that say what a pool runs, on what and how often.

    inside: the version of the engine in the image; empty: that of the prediction.
    """
    one = f"{serving.group} {serving.hardware}"
    place = f" on {serving.nodes} computers" if serving.nodes > 1 else ""
    times = "1 replica" if serving.replicas == 1 else f"{serving.replicas} replicas"
    role = f"{serving.role}: " if serving.role else ""
    tables, version = ENGINES[serving.engine].TABLES, version_of(serving)
    other = f"; predicted for version {version}" if inside and not same_release(inside, version) else ""
    if not same_release(tables.version, inside or version):
        other += f"; flags as of {tables.version}"
    limited = f"on every device first: nvidia-smi -pl {serving.power_limit.lower().removesuffix('w')}"
    notes = (*serving.notes, *launch.notes, *((limited,) if serving.power_limit else ()))
    return [f"{role}{times} of {one}{place}, {tables.title} {inside or version}{other}", *notes]


def same_release(one: str, two: str) -> bool:
    """Whether two versions share their first two numbers."""
    return one.split(".")[:2] == two.split(".")[:2]


#: Engine -> its flags; a module has TABLES, IMAGES, PORT, HEALTH, launch(), listen() and join().
ENGINES: dict[str, ModuleType] = {"vllm": vllm, "sglang": sglang, "trtllm": trtllm}
CLUSTER = Cluster()
#: Programs that divide requests between prefill and decode servers.
PROXIES = {
    "vllm": "a proxy sends each request to a prefill and then to a decode server, such as "
    "tests/v1/kv_connector/nixl_integration/toy_proxy_server.py of vLLM",
    "sglang": "requests are divided by python3 -m sglang_router.launch_router --pd-disaggregation --prefill URL "
    "--decode URL",
    "trtllm": "requests are divided by trtllm-serve disaggregated -c FILE, a file with the URLs of context_servers and "
    "generation_servers",
}


def emit(engine: str, serving: Serving) -> str:
    """The commands that start one replica of each pool.  Raises UserError for what the engine cannot run."""
    if serving.engine != engine:
        raise UserError(
            f"the configuration is one of engine {serving.engine}; emit {serving.engine} or size for {engine}"
        )
    parts = [_pool(ENGINES[engine], pool) for pool in serving.pools]
    if serving.prefill:
        parts.append(comments([PROXIES[engine]]).rstrip())
    return "\n\n".join(parts) + "\n"


def _pool(engine: ModuleType, pool: Serving) -> str:
    launch = engine.launch(pool)
    notes = heading(pool, launch)
    if pool.replicas > 1:
        notes.append("run this once per replica, behind a load balancer")
    if pool.maker not in engine.IMAGES:
        notes.append(f"no image is published for chips of {pool.maker}; a plugin for them may lack some of these flags")
    if pool.role and engine is vllm:
        notes.append(f"{vllm.IN_IMAGE}; set {vllm.SIDE_CHANNEL} to the server's address")
    files = [file(name, body) for name, body in launch.files.items()]
    return comments(notes) + "\n".join([*files, *_processes(engine, pool, launch)])


def _processes(engine: ModuleType, pool: Serving, launch: Launch) -> list[str]:
    flags = (*launch.flags, *engine.listen())
    if pool.nodes == 1:
        return [command(launch.program, flags)]
    if engine is trtllm:
        return [command((*_slurm(pool), *launch.program), flags)]
    others = "computer 1" if pool.nodes == 2 else f"computers 1 to {pool.nodes - 1}"
    first, other = (command(launch.program, (*flags, *engine.join(pool, CLUSTER, rank))) for rank in (0, 1))
    return [
        f"# computer 0; HEAD_ADDRESS is its own address\n{first}",
        f"# {others}; NODE_RANK is the computer's number\n{other}",
    ]


def _slurm(pool: Serving) -> tuple[str, ...]:
    """Start of a process per device through MPI.  Source: docs/source/commands/trtllm-serve of TensorRT-LLM."""
    counts = ("-N", str(pool.nodes), "--ntasks", str(pool.group), "--ntasks-per-node", str(pool.per_node))
    return ("srun", *counts, "--mpi=pmix", "trtllm-llmapi-launch")
