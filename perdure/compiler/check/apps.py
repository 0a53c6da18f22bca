"""Checks apps as a command line names them; one that cannot be imported does not keep the others from being checked."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path

from perdure.agents.adk_app import AdkApp
from perdure.agents.agent_tool import walk_all
from perdure.agents.broken import BrokenApp
from perdure.agents.definitions import App
from perdure.compiler.check.findings import Findings, Part, Seen, UserCode
from perdure.compiler.check.hazards import hazards
from perdure.compiler.compile import compile_app
from perdure.compiler.folders import agents_in
from perdure.compiler.loading import load_app
from perdure.errors import DefinitionError
from perdure.plan.nodes import CustomNode, LlmNode, Node

__all__ = ["check_apps"]


def check_apps(targets: Sequence[str]) -> Iterator[Findings]:
    """Yield what is to be said of apps, each when it is known.

    Args:
        targets: Each `MODULE:APP`, a `.py` file, an agent's folder, or a folder of such folders.
    """
    for target in targets:
        folders = agents_in(Path(target).resolve()) if Path(target).is_dir() else []
        for one in map(str, folders) if folders else (target,):
            yield _check(one)


def _check(target: str) -> Findings:
    try:
        app = load_app(target)
    except DefinitionError as error:
        return Findings(app=_name(target), refused=str(error))
    if isinstance(app, BrokenApp):
        return Findings(app=app.name, refused=app.reason)
    try:
        seen, refused = _look(app)
    except DefinitionError as error:
        return Findings(app=app.name, refused=str(error))
    found = tuple(hazards(seen, _folder(target)))
    return Findings(app=app.name, refused=refused, parts=tuple(seen.parts), hazards=found)


def _look(app: App | AdkApp) -> tuple[Seen, str | None]:
    if isinstance(app, AdkApp):
        seen: Seen = app.look(app)
        refused = seen.refused
        return seen, None if refused is None else refused.reason
    seen = Seen()
    seen.parts += _parts(compile_app(app).root, "")
    for agent in walk_all(app.root_agent):
        if agent.has_own_run:
            run = agent._run_async_impl  # pyright: ignore[reportPrivateUsage] -- ADK's name
            seen.code.append(UserCode("agent", f"the code of agent {agent.name!r}", run))
    return seen, None


def _parts(node: Node, above: str) -> Iterator[Part]:
    """Yield the parts of an app of Perdure's own agents, all of which are durable."""
    path = f"{above}/{node.name}" if above else node.name
    kind = "BaseAgent" if isinstance(node, CustomNode) else f"{node.kind.capitalize()}Agent"
    yield Part(name=node.name, path=path, kind=kind)
    for tool in node.tools if isinstance(node, LlmNode) else ():
        yield Part(name=tool.name, path=f"{path}/{tool.name}", kind=f"{tool.kind} tool", tool=True)
        if tool.agent is not None:
            yield from _parts(tool.agent, f"{path}/{tool.name}")
    for child in node.sub_agents:
        yield from _parts(child, path)


def _name(target: str) -> str:
    path = Path(target)
    return path.resolve().stem if path.exists() else target


def _folder(target: str) -> Path | None:
    """Return where an app's modules are: its folder, its file, or the folder of its module."""
    path = Path(target)
    if path.exists():
        return path.resolve()
    module = target.partition(":")[0]
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return None
    file = Path(spec.origin).resolve()
    return file.parent if file.name == "__init__.py" or "." in module else file
