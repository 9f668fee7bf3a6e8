"""Shell commands of the configuration, for one replica of each pool: vLLM, SGLang and TensorRT-LLM."""

from __future__ import annotations

from types import ModuleType

from llmviewer.core.errors import UserError
from llmviewer.planning.manifests import sglang, text, trtllm, vllm
from llmviewer.planning.manifests.flags import Cluster, Launch
from llmviewer.planning.manifests.serving import Serving

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
        parts.append(text.comments([PROXIES[engine]]).rstrip())
    return "\n\n".join(parts) + "\n"


def _pool(engine: ModuleType, pool: Serving) -> str:
    launch = engine.launch(pool)
    title = f"{engine.TABLES.title} {engine.TABLES.version}"
    notes = text.heading(pool, launch, title)
    if pool.replicas > 1:
        notes.append("run this once per replica, behind a load balancer")
    if pool.maker not in engine.IMAGES:
        notes.append(f"no image is published for chips of {pool.maker}; a plugin for them may lack some of these flags")
    if pool.role and engine is vllm:
        notes.append(f"{vllm.IN_IMAGE}; set {vllm.SIDE_CHANNEL} to the server's address")
    files = [text.file(name, body) for name, body in launch.files.items()]
    return text.comments(notes) + "\n".join([*files, *_processes(engine, pool, launch)])


def _processes(engine: ModuleType, pool: Serving, launch: Launch) -> list[str]:
    flags = (*launch.flags, *engine.listen())
    if pool.nodes == 1:
        return [text.command(launch.program, flags)]
    if engine is trtllm:
        return [text.command((*_slurm(pool), *launch.program), flags)]
    others = "computer 1" if pool.nodes == 2 else f"computers 1 to {pool.nodes - 1}"
    first, other = (text.command(launch.program, (*flags, *engine.join(pool, CLUSTER, rank))) for rank in (0, 1))
    return [
        f"# computer 0; HEAD_ADDRESS is its own address\n{first}",
        f"# {others}; NODE_RANK is the computer's number\n{other}",
    ]


def _slurm(pool: Serving) -> tuple[str, ...]:
    """Start of a process per device through MPI.  Source: docs/source/commands/trtllm-serve of TensorRT-LLM."""
    counts = ("-N", str(pool.nodes), "--ntasks", str(pool.group), "--ntasks-per-node", str(pool.per_node))
    return ("srun", *counts, "--mpi=pmix", "trtllm-llmapi-launch")
