"""Routes about the server and its apps."""

from __future__ import annotations

import platform
from importlib.metadata import version
from typing import Any, Literal

from fastapi import APIRouter, HTTPException
from google.genai.types import FunctionDeclaration
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

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


class _Told(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class AppSummary(_Told):
    """An app in a few words. ADK: `AppInfo` of `/list-apps?detailed=true`."""

    name: str
    root_agent_name: str
    description: str
    language: Literal["python"] = "python"
    is_computer_use: Literal[False] = False


class ListedApps(_Told):
    """The answer of `/list-apps?detailed=true`."""

    apps: list[AppSummary]


class ToolInfo(_Told):
    """A tool as models see it."""

    function_declarations: list[FunctionDeclaration]


class AgentInfo(_Told):
    """An LLM agent of an app."""

    name: str
    description: str
    instruction: str
    tools: list[ToolInfo]
    sub_agents: list[str] = Field(alias="sub_agents")
    """By name. ADK writes this one key so."""


class AppInfo(AppSummary):
    """An app with its LLM agents, by name."""

    agents: dict[str, AgentInfo]


@router.get("/list-apps")
async def list_apps(backend: BackendOf, detailed: bool = False) -> list[str] | ListedApps:
    """Return the names of the apps that the server was given; with `detailed`, more of each."""
    names = sorted(backend.plans)
    return ListedApps(apps=[AppSummary(**_summary(backend.plans[name])) for name in names]) if detailed else names


@router.get("/apps/{app_name}/app-info", response_model_exclude_none=True)
async def get_app_info(app_name: Segment, backend: BackendOf) -> AppInfo:
    """Return an app's LLM agents and their tools."""
    check_reserved(app_name)
    plan = backend.plans.get(app_name)
    if plan is None:
        raise HTTPException(404, f"App not found: {app_name}")
    if not isinstance(plan.root, LlmNode):
        raise HTTPException(400, f"the root agent of app {app_name!r} is no LlmAgent")
    agents = {node.name: _agent(node) for node in plan.nodes.values() if isinstance(node, LlmNode)}
    return AppInfo(**_summary(plan), agents=agents)


def _summary(plan: Plan) -> dict[str, Any]:
    return {"name": plan.app, "root_agent_name": plan.root.name, "description": plan.root.description}


def _agent(node: LlmNode) -> AgentInfo:
    return AgentInfo(
        name=node.name,
        description=node.description,
        instruction=node.instruction,
        tools=[ToolInfo(function_declarations=[tool.declaration]) for tool in node.tools],
        sub_agents=[child.name for child in node.sub_agents],
    )
