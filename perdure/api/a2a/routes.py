"""The routes of A2A: an app's card, and its requests by JSON-RPC, in the protocol's versions 1.0 and 0.3."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import quote, urlencode

from a2a.server.request_handlers.response_helpers import agent_card_to_dict
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import JSONResponse

from perdure.api.a2a.card import card_of
from perdure.api.a2a.handler import TaskHandler
from perdure.api.adk.schemas import storable
from perdure.api.auth.identity import IdentityOf
from perdure.api.auth.standing import StandingOf
from perdure.api.base.backend import BackendOf, Segment, check_reserved
from perdure.api.base.bodies import CheckedRequest, parse_json
from perdure.api.base.users import UserOf

# The protocol has its own schema, and its requests share one route.
router = APIRouter(prefix="/a2a/{app_name}", include_in_schema=False)

for _name in ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter"):
    # They write what clients sent into the log of the process.
    logging.getLogger(_name).setLevel(logging.CRITICAL)


@router.get("/.well-known/agent-card.json")
async def agent_card(app_name: Segment, request: Request, backend: BackendOf) -> Response:
    """Return an app's card."""
    check_reserved(app_name)
    async with backend.patience():
        await backend.check_served(app_name)
    query = request.query_params.get("userId")
    path = f"{str(request.base_url).rstrip('/')}/a2a/{quote(app_name, safe='')}"
    url = f"{path}?{urlencode({'userId': query})}" if query else path
    card = card_of(app_name, backend.plans.get(app_name), url, asks_for_credentials=backend.config.auth is not None)
    return JSONResponse(agent_card_to_dict(card))


@router.post("")
@router.post("/", name="ask_with_slash")
async def ask(
    app_name: Segment, request: Request, backend: BackendOf, identity: IdentityOf, standing: StandingOf, user: UserOf
) -> Response:
    """Answer a request."""
    check_reserved(app_name)
    # Checks the names, and who asks.
    backend.runner(app_name, user)
    body = await request.body()
    checked = CheckedRequest(request.scope, request.receive)
    async with backend.checking:
        checked.checked = await asyncio.to_thread(_checked, body)
    handler = TaskHandler(app_name, user, backend, identity, standing)
    return await JsonRpcDispatcher(handler, enable_v0_3_compat=True).handle_requests(checked)


def _checked(body: bytes) -> Any:
    try:
        return storable(parse_json(body))
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
