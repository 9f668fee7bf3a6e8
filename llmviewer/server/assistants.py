"""The Model Context Protocol over standard input and output, by its official SDK (extra `mcp`)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

from llmviewer.core.errors import UserError, missing_extra, printable, unknown
from llmviewer.core.version import __version__
from llmviewer.server.tokens import fitted
from llmviewer.server.tools import INSTRUCTIONS, Tool

JSON = "application/json"
#: Held while an answer gets its address.
NUMBERING = Lock()


def serve(tools: Mapping[str, Tool]) -> None:
    """Answer an assistant until it closes standard input.  Raises UserError if the extra `mcp` is not installed.

    tools: by name, those that it may use.
    """
    try:
        import anyio
        from mcp.server.lowlevel import Server
        from mcp.server.stdio import stdio_server
    except ImportError as error:
        raise missing_extra("the tools for assistants need the package mcp", "mcp") from error

    documents: dict[str, Callable[[], str]] = {}

    async def list_tools(context: Any, asked: Any) -> Any:
        return _listed(tools)

    async def call_tool(context: Any, asked: Any) -> Any:
        return await anyio.to_thread.run_sync(lambda: _called(tools, asked.name, asked.arguments or {}, documents))

    async def list_resources(context: Any, asked: Any) -> Any:
        return _resources(documents)

    async def read_resource(context: Any, asked: Any) -> Any:
        return await anyio.to_thread.run_sync(lambda: _read(documents, str(asked.uri)))

    server: Any = Server(
        "llmviewer",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await server.run(reading, writing, server.create_initialization_options())

    anyio.run(run)


def _listed(tools: Mapping[str, Tool]) -> Any:
    """All tools as the protocol describes them."""
    from mcp import types

    hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    return types.ListToolsResult(
        tools=[
            types.Tool(
                name=one.name,
                title=one.title,
                description=one.description,
                input_schema=one.schema(),
                annotations=hints,
            )
            for one in tools.values()
        ]
    )


def _resources(documents: Mapping[str, Any]) -> Any:
    """The documents of the answers so far."""
    from mcp import types

    return types.ListResourcesResult(
        resources=[types.Resource(uri=uri, name=uri.rpartition("/")[2], mime_type=JSON) for uri in documents]
    )


def _read(documents: Mapping[str, Callable[[], str]], uri: str) -> Any:
    """The whole document of an answer of this conversation, computed again."""
    from mcp import MCPError, types

    if uri not in documents:
        raise MCPError(code=types.INVALID_PARAMS, message=str(unknown("document", uri, documents)))
    return types.ReadResourceResult(
        contents=[types.TextResourceContents(uri=uri, mime_type=JSON, text=documents[uri]())]
    )


def _called(tools: Mapping[str, Tool], name: str, given: Any, documents: dict[str, Callable[[], str]]) -> Any:
    """The result of one of the tools, or an error with the line that a user of the command line reads.

    documents: what gives the whole document of an answer by its address, to which that of this one is added.
    """
    try:
        if name not in tools:
            raise unknown("tool", name, tools)
        tool = tools[name]
        answer = tool.called(given)
        with NUMBERING:
            uri = f"llmviewer://answers/{len(documents) + 1}"
            documents[uri] = lambda: tool.document(given)
        return _result(fitted({**answer, "document": uri}))
    except UserError as error:
        return _failed(str(error))
    except Exception as error:
        return _failed(
            f"internal error in llmviewer, please report it: {type(error).__name__}: {printable(error, 200)}"
        )


def _result(found: dict[str, Any]) -> Any:
    from mcp import types

    text = types.TextContent(type="text", text=json.dumps(found, allow_nan=False))
    return types.CallToolResult(content=[text], structured_content=found)


def _failed(line: str) -> Any:
    from mcp import types

    return types.CallToolResult(content=[types.TextContent(type="text", text=line)], is_error=True)
