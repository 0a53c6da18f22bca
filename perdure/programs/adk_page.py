"""google.adk's own web page, out of the installed package, over Perdure's API."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, HTTPException
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from google.adk import cli
from google.adk.agents.base_agent import BaseAgent
from google.adk.apps.app import App
from google.adk.cli.agent_graph import get_agent_graph

from perdure.adk.graphs import is_graph
from perdure.agents.adk_app import AdkApp, AnyApp

try:
    from google.adk.cli.utils.graph_serialization import serialize_app_info
    from google.adk.cli.utils.graph_visualization import plot_workflow_graph
except ImportError:
    # not in 1.x
    serialize_app_info: Any = None
    plot_workflow_graph: Any = None

__all__ = ["add_adk_page"]

_PAGE = Path(cli.__file__).parent / "browser"
_AT = "/dev-ui/"

_OF_APP = ("/dev/apps/{app_name}", "/apps/{app_name}")
"""Where 2.x and 1.x have what is told of an app."""

_LISTS = ("eval_sets", "eval-sets", "eval_results", "eval-results", "tests", "debug/trace/session/{session_id}")
"""What Perdure has none of: evaluations, an app's tests, spans."""


def add_adk_page(api: FastAPI, apps: Iterable[AnyApp]) -> None:
    """Serve the page at `/dev-ui/` beside the API, with the routes that only it asks for.

    What Perdure has not (evaluations, spans, the builder of agents) is told to be empty. Pictures of the agents are
    google.adk's own. All of it stands behind what stands before the API: its guard, and who is let in.

    Args:
        api: What `create_app` has returned.
        apps: The apps that it serves.
    """
    given = {one.name: one.app for one in apps if isinstance(one, AdkApp)}
    for router in (_page(), _nothing(), _pictures(given)):
        api.include_router(router)
    api.mount(_AT, StaticFiles(directory=_PAGE, html=True), name="adk page")


def _page() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    @router.get("/dev-ui")
    async def lead() -> RedirectResponse:
        return RedirectResponse(_AT)

    @router.get(f"{_AT}assets/config/runtime-config.json")
    async def runtime_config() -> JSONResponse:
        return JSONResponse({"backendUrl": "", "telemetry": False}, headers={"Cache-Control": "no-store"})

    @router.get(f"{_AT}config")
    async def page_config() -> dict[str, Any]:
        return {"logo_text": None, "logo_image_url": None}

    # Nothing is told to anybody, whatever a page asks for.
    @router.get("/config/telemetry")
    @router.post("/config/telemetry")
    async def telemetry() -> dict[str, bool]:
        return {"telemetry": False}

    return router


def _nothing() -> APIRouter:
    router = APIRouter(include_in_schema=False)

    async def none() -> list[Any]:
        return []

    async def no_text() -> PlainTextResponse:
        return PlainTextResponse("")

    async def no_metrics() -> dict[str, Any]:
        return {"metricsInfo": []}

    for of_app in _OF_APP:
        for name in _LISTS:
            router.get(f"{of_app}/{name}")(none)
        router.get(f"{of_app}/metrics-info")(no_metrics)
        router.get(f"{of_app}/builder")(no_text)
    router.get("/debug/trace/session/{session_id}")(none)
    return router


def _plotted(info: Any, *, dark_mode: bool) -> dict[str, str]:
    return {"dotSrc": plot_workflow_graph({"root_agent": info}, format="dot", dark_mode=dark_mode) or ""}


def _graphs_in(info: Any, above: str) -> Iterator[tuple[str, Any]]:
    """Yield the graphs within a graph, as google.adk describes them, by their paths."""
    nodes: list[Any] = info.get("graph", {}).get("nodes", [])
    for node in nodes:
        path = f"{above}{node.get('name')}"
        if node.get("graph"):
            yield path, node
            yield from _graphs_in(node, f"{path}/")


def _pictures(apps: Mapping[str, App]) -> APIRouter:
    router = APIRouter(include_in_schema=False)

    async def picture(app_name: str, *, dark_mode: bool = True) -> dict[str, str]:
        root: object = apps[app_name].root_agent if app_name in apps else None
        if is_graph(root):
            return _plotted(serialize_app_info(apps[app_name])["root_agent"], dark_mode=dark_mode)
        if not isinstance(root, BaseAgent):
            raise HTTPException(404, f"App not found: {app_name}")
        graph = await get_agent_graph(root, [], dark_mode=dark_mode)
        return {"dotSrc": "" if isinstance(graph, bytes) else graph.source}

    async def pictures(app_name: str, *, dark_mode: bool = True) -> dict[str, dict[str, str]]:
        root = await picture(app_name, dark_mode=dark_mode)
        inner: dict[str, Any] = {}
        if is_graph(apps[app_name].root_agent):
            inner = dict(_graphs_in(serialize_app_info(apps[app_name])["root_agent"], ""))
        return {"": root} | {path: _plotted(info, dark_mode=dark_mode) for path, info in inner.items()}

    async def app_info(app_name: str) -> Any:
        if serialize_app_info is None or app_name not in apps:
            raise HTTPException(404, f"App not found: {app_name}")
        return serialize_app_info(apps[app_name])

    shown: dict[str, Callable[..., Awaitable[Any]]] = {
        "/dev/apps/{app_name}/build_graph": app_info,
        "/dev/apps/{app_name}/graph": picture,
        "/dev/{app_name}/graph": picture,
        "/dev/apps/{app_name}/build_graph_image": pictures,
        "/dev/build_graph_image/{app_name}": pictures,
    }
    for of_app in _OF_APP:
        shown[f"{of_app}/users/{{user_id}}/sessions/{{session_id}}/events/{{event_id}}/graph"] = picture
    for path, route in shown.items():
        router.get(path)(route)
    return router
