"""Graphs of google.adk 2: `Workflow`, its nodes, and the agents among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast
from weakref import ref

from google.adk.agents.base_agent import BaseAgent
from google.adk.tools.base_tool import BaseTool

from perdure.adk import graph_internals, internals
from perdure.adk.named_values import reached
from perdure.plan.graph_shapes import GraphEdge, GraphPoint, GraphShape

if internals.MAJOR >= 2:
    from google.adk.workflow import BaseNode, FunctionNode, Workflow
else:
    # google.adk 1 has no graphs.
    BaseNode: Any = BaseAgent
    FunctionNode: Any = None
    Workflow: Any = None

RUN_NODE = "run_node"
"""The name of the method of contexts that runs a node."""

__all__ = [
    "RUN_NODE",
    "agents_of",
    "builds_agents",
    "built",
    "fields_of",
    "function_of",
    "given_as",
    "is_copy",
    "is_graph",
    "is_leaf",
    "points_of",
    "runs_node",
    "shape_of",
    "tool_of",
    "values_in",
]


def is_graph(given: object) -> bool:
    """Return whether an app's root, or a node, is a graph."""
    return Workflow is not None and isinstance(given, Workflow)


def agents_of(graph: Any) -> list[BaseAgent]:
    """Return the agents that run as nodes of a graph, of graphs in it, and of those that its functions run by name."""
    found: list[BaseAgent] = []
    for node in _walk(graph):
        if isinstance(node, BaseAgent) and not any(is_copy(node, known) for known in found):
            found.append(node)
    return found


def points_of(graph: Any) -> list[Any]:
    """Return the nodes of a graph, and of graphs in it, that run code of the app's, and are no agents."""
    return [node for node in _walk(graph) if is_leaf(node)]


def is_copy(agent: BaseAgent, known: BaseAgent) -> bool:
    """Return whether an agent is another, or one of the copies of it that google.adk makes to run it as a node."""
    if (agent.name, type(agent)) != (known.name, type(known)):
        return False
    given, of_known = vars(agent), vars(known)
    return all(_is_same(value, of_known.get(name)) for name, value in given.items() if name not in _MADE_ANEW)


_MADE_ANEW = frozenset({"mode", "include_contents", "parent_agent", "sub_agents", "rerun_on_resume", "wait_for_output"})
"""Fields in which such a copy may differ."""


def _is_same(value: object, known: object) -> bool:
    if isinstance(value, list) and isinstance(known, list):
        values, others = cast("list[object]", value), cast("list[object]", known)
        return len(values) == len(others) and all(map(_is_same, values, others))
    return value is known or (isinstance(value, str | int | float) and value == known)


def _walk(node: Any) -> Iterator[Any]:
    """Yield a graph's nodes, all the way down, each once; not what is underneath agents."""
    seen: set[int] = set()
    left = [node]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        yield node
        if isinstance(node, BaseAgent):
            continue
        left += graph_internals.nodes_of(node)[::-1]
        function = function_of(node)
        if function is not None:
            left += _run_by(function)
        elif is_leaf(node) and tool_of(node) is None:
            left += [built(held) for held in values_in(fields_of(node), BaseNode)]
            left += _run_by(graph_internals.code_of(node))


def _run_by(function: Callable[..., Any]) -> list[Any]:
    """Return the nodes that code names which runs nodes: a function's, or what it calls."""
    named = [value for one in reached(function) if RUN_NODE in one.names for value in one.values]
    return [built(node) for node in values_in(named, BaseNode)]


def builds_agents(function: Any) -> bool:
    """Return whether code that runs nodes may build agents itself: it names a class of them."""
    found = list(reached(function))
    values = (value for one in found for value in one.values)
    return any(RUN_NODE in one.names for one in found) and any(
        isinstance(value, type) and issubclass(value, BaseAgent) for value in values
    )


_BUILT: dict[int, tuple[ref[Any], Any]] = {}
"""Agents by their ids, with what google.adk builds of them to run them as nodes: for as long as they are there.

A test may have given that another model, so it is to be the same one wherever it is looked for.
"""


def built(node: Any) -> Any:
    """Return a node as google.adk builds it to run it: an agent in the same copy each time."""
    if not isinstance(node, BaseAgent):
        return node
    known, copy = _BUILT.get(id(node), (None, None))
    if known is None or known() is not node:
        key = id(node)
        copy = graph_internals.build_node(node)
        if copy is node:
            # Kept for itself, it would be there for ever.
            return node
        _BUILT[key] = (ref(node, lambda gone: _forget(key, gone)), copy)
    return copy


def given_as(agent: BaseAgent) -> BaseAgent | None:
    """Return the agent of which google.adk built another; `None` if it built none for Perdure."""
    return next((known() for known, copy in _BUILT.values() if copy is agent), None)


def _forget(key: int, gone: ref[Any]) -> None:
    # Another agent may have that id by now.
    if key in _BUILT and _BUILT[key][0] is gone:
        del _BUILT[key]


def values_in(given: object, kind: type[Any]) -> Iterator[Any]:
    """Yield the values of a class in a value, in the fields of lists, tuples and dictionaries, too."""
    if isinstance(given, kind):
        yield given
    elif isinstance(given, dict):
        yield from values_in(list(cast("dict[Any, Any]", given).values()), kind)
    elif isinstance(given, list | tuple):
        for value in cast("list[Any]", given):
            yield from values_in(value, kind)


def fields_of(given: Any) -> dict[str, Any]:
    """Return the values of an object's fields, private ones too, by name."""
    public: dict[str, Any] = given.__dict__
    private: dict[str, Any] = given.__pydantic_private__ or {}
    return public | private


def function_of(node: Any) -> Callable[..., Any] | None:
    """Return the function that a node calls, if it is one of these."""
    return graph_internals.function_of(node) if FunctionNode and isinstance(node, FunctionNode) else None


def tool_of(node: Any) -> BaseTool | None:
    """Return the tool that a node runs, if it is one of these."""
    return graph_internals.tool_of(node)


def runs_node(tool: object) -> bool:
    """Return whether an agent's tool is a graph, or another node: google.adk wraps those among `tools`."""
    return Workflow is not None and isinstance(tool, BaseTool) and isinstance(getattr(tool, "node", None), BaseNode)


def is_leaf(node: Any) -> bool:
    """Return whether a node runs code of the app's: no graph, no agent, and not one that google.adk joins others by."""
    if is_graph(node) or isinstance(node, BaseAgent):
        return False
    return function_of(node) is not None or tool_of(node) is not None or not _is_adks(node)


def _is_adks(node: Any) -> bool:
    return type(node).__module__.startswith("google.adk.")


def shape_of(graph: Any) -> GraphShape:
    """Return a graph's picture."""
    compiled = graph.graph
    if compiled is None:
        return GraphShape()
    return GraphShape(
        nodes=tuple(_point(node) for node in graph_internals.nodes_of(graph)),
        edges=tuple(
            GraphEdge(start=edge.from_node.name, end=edge.to_node.name, route=_routes(edge.route))
            for edge in compiled.edges
        ),
    )


def _point(node: Any) -> GraphPoint:
    return GraphPoint(
        name=node.name, kind=type(node).__name__.lstrip("_"), graph=shape_of(node) if is_graph(node) else None
    )


def _routes(route: Any) -> tuple[str, ...]:
    if route is None:
        return ()
    return tuple(str(one) for one in cast("list[Any]", route if isinstance(route, list) else [route]))
