"""Finds what works in one process that never ends, and not with workers that come and go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from perdure.compiler.check.findings import Hazard, Part, Seen, UserCode
from perdure.compiler.check.modules import app_modules, module_hazards
from perdure.compiler.check.reach import MadeCall, calls_reached
from perdure.compiler.impure import why_impure

_RUNNERS = ("google.adk.runners.Runner", "google.adk.runners.InMemoryRunner")
_ASKING = ("generate_content", "generate_content_stream", "generate_content_async", "send_message", "acompletion")
_MEMORY = ("add_session_to_memory", "search_memory")
_AS_AGENT = "give the agent to AgentTool, or to sub_agents: then each of its steps is recorded"
_ASKING_CHAINS = ("completions.create", "messages.create", "responses.create", "litellm.completion")


def hazards(seen: Seen, folder: Path | None) -> list[Hazard]:
    """Return the hazards of an app.

    Args:
        seen: What a look at its objects has found.
        folder: Where its modules are, or the file that it is; `None` if that is not known.
    """
    found: list[Hazard] = []
    for file in app_modules(folder) if folder is not None else ():
        found += module_hazards(file)
    for code in seen.code:
        found += _of_code(code)
    found += [_memory(who, "is a tool of the memory service") for who in seen.remembers]
    found += [_credential(who, "has an auth config") for who in seen.asks_credentials]
    return list(dict.fromkeys(found))


def _memory(where: str, how: str) -> Hazard:
    return Hazard(
        kind="in_memory_memory",
        where=where,
        words=f"{how}, which is kept where artifacts are; without such a place each worker has a memory of its own, and"
        " loses it when it ends",
        remedy="give --artifacts to workers and the HTTP API (`perdure dev` has a place of its own)",
    )


def _credential(where: str, how: str) -> Hazard:
    return Hazard(
        kind="credentials",
        where=where,
        words=f"{how}: a person may be asked for a secret, which needs a place outside of histories",
        remedy="give --credentials, or --encryption-keys, to workers, the HTTP API and `perdure respond` (`perdure dev`"
        " has a store of its own)",
    )


def _of_code(code: UserCode) -> Iterator[Hazard]:
    for call in calls_reached(code.function):
        name = call.text.rpartition(".")[2]
        if code.role != "tool":
            yield from _clock(code, call)
        if code.role != "callback" and (what := _asks_model(call)) is not None:
            yield Hazard(
                kind="own_model_calls",
                where=call.where,
                words=f"{code.name} {what}: no answer is recorded by itself, and all are asked for again if the step is"
                " cut off",
                remedy=_AS_AGENT,
            )
        if code.role == "callback" and name == "run_node":
            yield Hazard(
                kind="own_nodes",
                where=call.where,
                words=f"{code.name} calls {call.text}(), which fails: only graphs, their functions and tools run nodes",
                remedy="call the node's function itself, or give the node to a tool or a graph",
            )
        if name in _MEMORY:
            yield _memory(call.where, f"{code.name} calls {name}() of the memory service")
        elif name == "request_credential":
            yield _credential(call.where, f"{code.name} calls {name}()")


def coarser_tool(part: Part, code: UserCode) -> Part:
    """Return a tool's part: coarser where its code asks a model, or runs agents, by itself."""
    for call in calls_reached(code.function):
        what = _asks_model(call)
        if what is not None:
            return part.model_copy(
                update={
                    "verdict": "coarser",
                    "reason": f"it {what}: all of that is one step",
                    "remedy": _AS_AGENT,
                }
            )
    return part


def _clock(code: UserCode, call: MadeCall) -> Iterator[Hazard]:
    reason = why_impure(call.found.path, call.found.value) if call.found is not None else None
    if reason is not None:
        yield Hazard(
            kind="clock_or_randomness",
            where=call.where,
            words=f"{code.name} calls {call.text}(), which {reason}: it gets another value where its step is cut off"
            " and done again",
            remedy="write what must stay the same into the state, and read it from there",
        )


def _asks_model(call: MadeCall) -> str | None:
    path = call.found.path if call.found is not None else ""
    name = call.text.rpartition(".")[2]
    if path in _RUNNERS or (call.found is None and name == "InMemoryRunner"):
        return f"runs agents by its own {name}"
    if name == "run_async" and "tool_context" in call.keywords:
        return "runs an agent by AgentTool.run_async()"
    if name in _ASKING or call.text.endswith(_ASKING_CHAINS):
        return f"asks a model by {call.text}()"
    return None
