"""The agent card of an app: what other agents read before they ask it. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from a2a.types import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)

from perdure.plan.nodes import LlmNode, Plan

_VERSION = "0.0.1"
"""An app has no version of its own. As in ADK's cards."""

_MODES = ["text/plain", "application/json"]


def card_of(app: str, plan: Plan | None, url: str, *, asks_for_credentials: bool) -> AgentCard:
    """Return an app's card.

    Args:
        app: The app's name.
        plan: Its plan, if the server was given the app.
        url: Where it is asked.
        asks_for_credentials: Whether requests need a bearer token.
    """
    # Both versions are spoken at the same address, told apart by the client's header.
    interfaces = [
        AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version=version) for version in ("1.0", "0.3")
    ]
    secured = asks_for_credentials
    return AgentCard(
        name=plan.root.name if plan is not None else app,
        description=(plan.root.description if plan is not None else "") or f"The agents of the app {app}.",
        version=_VERSION,
        supported_interfaces=interfaces,
        capabilities=AgentCapabilities(streaming=True, push_notifications=False),
        default_input_modes=_MODES,
        default_output_modes=_MODES,
        skills=list(_skills(app, plan)),
        security_schemes={"bearer": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="Bearer"))}
        if secured
        else None,
        security_requirements=[SecurityRequirement(schemes={"bearer": StringList()})] if secured else None,
    )


def _skills(app: str, plan: Plan | None) -> Iterator[AgentSkill]:
    if plan is None:
        yield AgentSkill(id=app, name=app, description=f"What the app {app} does.", tags=["agent"])
        return
    root = plan.root
    yield AgentSkill(
        id=root.name, name=root.name, description=root.description or f"What {root.name} does.", tags=["agent"]
    )
    for tool in root.tools if isinstance(root, LlmNode) else ():
        yield AgentSkill(
            id=f"{root.name}-{tool.name}",
            name=tool.name,
            description=tool.declaration.description or tool.name,
            tags=["tool"],
        )
