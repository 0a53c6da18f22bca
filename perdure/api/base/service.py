"""Routes about the server and its apps."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, HTTPException

from perdure.api.base.backend import BackendOf, Segment, check_reserved
from perdure.plan.nodes import LlmNode, Plan

router = APIRouter(tags=["service"])


@router.get("/health")
async def health() -> dict[str, str]:
    """Say that the server runs; Temporal and the workers are not asked."""
    return {"status": "ok"}


@router.get("/version")
async def versions() -> dict[str, str]:
    """Return the versions of Perdure and Python."""
    return {"version": version("perdure"), "language": "python", "language_version": platform.python_version()}


@router.get("/list-apps")
async def list_apps(backend: BackendOf, detailed: bool = False) -> Any:
    """Return the names of the apps that the server was given; with `detailed`, more of each."""
    names = sorted(backend.plans)
    return {"apps": [_summary(backend.plans[name]) for name in names]} if detailed else names


@router.get("/apps/{app_name}/app-info")
async def app_info(app_name: Segment, backend: BackendOf) -> dict[str, Any]:
    """Return an app's LLM agents and their tools."""
    check_reserved(app_name)
    plan = backend.plans.get(app_name)
    if plan is None:
        raise HTTPException(404, f"App not found: {app_name}")
    if not isinstance(plan.root, LlmNode):
        raise HTTPException(400, f"the root agent of app {app_name!r} is no LlmAgent")
    agents = {node.name: _agent(node) for node in plan.nodes.values() if isinstance(node, LlmNode)}
    return {**_summary(plan), "agents": agents}


def _summary(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.app,
        "rootAgentName": plan.root.name,
        "description": plan.root.description,
        "language": "python",
        "isComputerUse": False,
    }


def _agent(node: LlmNode) -> dict[str, Any]:
    declared = [tool.declaration.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in node.tools]
    return {
        "name": node.name,
        "description": node.description,
        "instruction": node.instruction,
        "tools": [{"functionDeclarations": [declaration]} for declaration in declared],
        # ADK writes this one key so.
        "sub_agents": [child.name for child in node.sub_agents],
    }
