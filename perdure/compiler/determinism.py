"""Checks custom agents: that workflows can load them, and that their code is deterministic.

No clock, no randomness, no I/O, no threads. The check reads the source of `_run_async_impl` and of what that reaches:
the class's own methods, and functions and classes of the user's modules. Names are resolved through the real modules,
so aliases do not hide a call. What depends on values at run time is not seen here; the workflow sandbox is the second
line.
"""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import FunctionType, MethodType
from typing import Any, cast

from perdure.agents.custom import BaseAgent
from perdure.compiler.impure import FILE_METHOD_REASON, FILE_METHODS, why_impure
from perdure.compiler.name_resolver import Found, Resolver, Source, is_users, namespace_of, source_of
from perdure.errors import DefinitionError

_REMEDY = (
    "a workflow is replayed, so it must not; do it in a function listed in App(activities=[…]) and "
    "await ctx.run_activity(fn, …), or in a tool"
)


def check_custom_agent(agent: BaseAgent, agents: Sequence[BaseAgent]) -> None:
    """Check a custom agent: its method, what it holds, where it is defined, and that it is deterministic.

    Args:
        agent: The custom agent.
        agents: All agents of the tree.

    Raises:
        DefinitionError: Something is wrong with it.
    """
    if not inspect.isasyncgenfunction(inspect.unwrap(agent._run_async_impl)):  # pyright: ignore[reportPrivateUsage] -- ADK's name
        raise DefinitionError(
            f"agent {agent.name!r}: _run_async_impl of {type(agent).__name__} is no async generator; write it as "
            "`async def _run_async_impl(self, ctx)` with `yield`"
        )
    for field in type(agent).model_fields:
        for held in _agents_in(getattr(agent, field)):
            if not any(held is known for known in agents):
                raise DefinitionError(
                    f"agent {agent.name!r} holds agent {held.name!r} in its field {field!r}, but not in its tree; add "
                    "it to sub_agents, so that it can be run"
                )
    code_reference(agent)
    check_deterministic(agent)


def _agents_in(value: object) -> Iterator[BaseAgent]:
    if isinstance(value, BaseAgent):
        yield value
    elif isinstance(value, Mapping):
        yield from _agents_in(list(cast(Mapping[Any, object], value).values()))
    elif isinstance(value, list | tuple):
        for item in cast(list[object], value):
            yield from _agents_in(item)


def code_reference(agent: BaseAgent) -> str:
    """Return `MODULE:QUALNAME` of a custom agent's class, by which a workflow loads it afresh.

    Raises:
        DefinitionError: The class cannot be found so.
    """
    cls = type(agent)
    module = cls.__module__
    if module == "__main__":
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is None:
            raise DefinitionError(
                f"agent {agent.name!r}: its class {cls.__qualname__} stands in the script that is being run, which "
                "workflows cannot load; move it to a module of its own and import it from there"
            )
        module = spec.name
    found: Any = sys.modules.get(cls.__module__)
    try:
        found = functools.reduce(_attribute, cls.__qualname__.split("."), found)
    except AttributeError:
        found = None
    if found is not cls:
        raise DefinitionError(
            f"agent {agent.name!r}: its class {module}.{cls.__qualname__} cannot be imported by that name; define it "
            "at the top level of its module, not inside of a function"
        )
    return f"{module}:{cls.__qualname__}"


_attribute: Callable[[Any, str], Any] = getattr


def check_deterministic(agent: BaseAgent) -> None:
    """Check the code that a custom agent runs in the workflow.

    Raises:
        DefinitionError: It uses something that is not deterministic; one line for each place.
    """
    guard = _Guard(agent)
    guard.run()
    if guard.problems:
        lines = (f"{file}:{line}: {text}" for (file, line), text in sorted(guard.problems.items()))
        raise DefinitionError("\n".join(lines))


class _Guard:
    """The check of one agent: a list of code still to be read, and what was found."""

    def __init__(self, agent: BaseAgent) -> None:
        self._agent = agent
        self._queue: list[Any] = [type(agent)._run_async_impl]  # pyright: ignore[reportPrivateUsage] -- ADK's name
        self._seen: set[int] = set()
        self.problems: dict[tuple[str, int], str] = {}

    def run(self) -> None:
        while self._queue:
            code = self._queue.pop()
            if id(code) in self._seen:
                continue
            self._seen.add(id(code))
            source = source_of(code)
            if source is not None:
                self._read(code, source)

    def _read(self, code: Any, source: Source) -> None:
        if isinstance(code, FunctionType):
            is_method = any(code in _functions(cls) for cls in type(self._agent).__mro__)
            receiver = self._agent if is_method else None
            resolver = Resolver(source.node, namespace_of(code), receiver)
        else:
            resolver = Resolver(source.node, vars(sys.modules[code.__module__]))
        for expression, called in _uses(source.node):
            found = resolver.resolve(expression)
            problem = self._judge(expression, found, called)
            if problem is not None:
                # The outermost use of a line comes first, and says most.
                self.problems.setdefault((source.file, expression.lineno), problem)
            elif found is not None:
                self._follow(found.value)

    def _judge(self, expression: ast.expr, found: Found | None, called: bool) -> str | None:
        if found is None:
            if called and isinstance(expression, ast.Attribute) and expression.attr in FILE_METHODS:
                return self._say(ast.unparse(expression), FILE_METHOD_REASON, called)
            return None
        reason = why_impure(found.path, found.value, called=called)
        if reason is None:
            return None
        is_builtin = isinstance(expression, ast.Name) and hasattr(builtins, expression.id)
        # Anything else is shown under its full name, whatever it was imported as.
        return self._say(ast.unparse(expression) if is_builtin else found.path, reason, called)

    def _say(self, what: str, reason: str, called: bool) -> str:
        verb, end = ("calls", "()") if called else ("uses", "")
        return f"custom agent {self._agent.name!r} {verb} {what}{end}, which {reason}: {_REMEDY}"

    def _follow(self, value: Any) -> None:
        if isinstance(value, MethodType):
            value = value.__func__
        is_code = isinstance(value, FunctionType) or (inspect.isclass(value) and not issubclass(value, BaseAgent))
        if not is_code or not is_users(value):
            return
        self._queue.append(value)
        if isinstance(value, FunctionType):
            # Behind a decorator.
            self._queue.append(inspect.unwrap(value))


def _functions(cls: type[Any]) -> list[Any]:
    return [
        value.fget if isinstance(value, property) else inspect.unwrap(value)
        for value in vars(cls).values()
        if isinstance(value, property | FunctionType)
    ]


def _uses(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the names and dotted names that a function or class uses when it runs, and whether it calls them.

    Annotations do not run. What is handed to `run_activity` runs elsewhere.
    """
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
            # Decorators and defaults of the function itself ran when its module was imported.
            yield from _uses_in(node.body if isinstance(node.body, list) else [node.body])
        case _:
            yield from _uses_in(ast.iter_child_nodes(node))


def _inner_uses(node: ast.AST) -> Iterator[tuple[ast.expr, bool]]:
    match node:
        case ast.Call(func=function, args=args, keywords=keywords):
            yield function, True
            if not isinstance(function, ast.Name):
                yield from _behind(function)
            elsewhere = isinstance(function, ast.Attribute) and function.attr == "run_activity"
            yield from _uses_in((*(args[1:] if elsewhere else args), *keywords))
        case ast.Attribute(ctx=ast.Load()) | ast.Name(ctx=ast.Load()):
            yield node, False
            yield from _behind(node)
        case ast.AnnAssign(value=value):
            yield from _uses_in(() if value is None else (value,))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from _uses_in((*node.decorator_list, node.args, *node.body))
        case _:
            yield from _uses_in(() if isinstance(node, ast.arg) else ast.iter_child_nodes(node))


def _uses_in(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.expr, bool]]:
    for node in nodes:
        yield from _inner_uses(node)


def _behind(expression: ast.expr) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the uses in what a dotted name starts from, such as the call in `f().x`."""
    while isinstance(expression, ast.Attribute):
        expression = expression.value
        if isinstance(expression, ast.Attribute | ast.Name):
            yield expression, False
    if not isinstance(expression, ast.Name):
        yield from _inner_uses(expression)
