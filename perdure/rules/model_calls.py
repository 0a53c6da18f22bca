"""Counts the model calls of an invocation against its limit. Pure. ADK: `RunConfig.max_llm_calls`."""

from __future__ import annotations

from collections import Counter

from perdure.journal.invocations import Invocation
from perdure.plan.nodes import LlmNode, Plan

LIMIT = "max_llm_calls"
"""What a session waits for, in listings, where an invocation has made as many model calls as it may."""

_PLENTY = 10
"""How many times as many calls are left, where several are given to an agent at once."""


def call_limit(plan: Plan, invocation: Invocation) -> int:
    """Return how many model calls an invocation may make from its start, or from its last resume, on; 0: any number.

    A resume's own number counts before the message's, and that before the app's.
    """
    own, asked = max(plan.max_llm_calls, 0), invocation.granted or invocation.asked
    if asked is None:
        return own
    if asked.lowers:
        return min((limit for limit in (own, asked.most) if limit > 0), default=0)
    return max(asked.most, 0)


def why_no_call(plan: Plan, node: LlmNode, invocation: Invocation, under_way: Counter[str]) -> str | None:
    """Return why an agent may not call its model now; `None` if it may.

    Args:
        plan: The invocation's plan.
        node: The agent.
        invocation: The invocation.
        under_way: Calls that have not come back yet, by agent.
    """
    made = invocation.model_calls + under_way
    limit, own = call_limit(plan, invocation), node.max_llm_calls
    if limit and made.total() >= limit:
        return _words(node.name, f"all agents of the invocation together may make {limit}", plan)
    if own > 0 and made[node.name] >= own:
        return _words(node.name, f"this agent may make {own} in an invocation", plan)
    return None


def may_reserve(plan: Plan, node: LlmNode, invocation: Invocation, under_way: Counter[str], calls: int) -> bool:
    """Return whether an agent may be given so many calls ahead: others, and itself, have many times as many left."""
    made = invocation.model_calls + under_way
    limits = ((call_limit(plan, invocation), made.total()), (node.max_llm_calls, made[node.name]))
    return all(limit - count >= _PLENTY * calls for limit, count in limits if limit > 0)


def _words(agent: str, limit: str, plan: Plan) -> str:
    remedy = "a resume lets it go on, with as many again" if plan.resumable else "the app is not resumable"
    return f"agent {agent!r} would make one model call more than {LIMIT} lets it: {limit}; {remedy}"


def is_at_limit(invocation: Invocation) -> bool:
    """Return whether an invocation waits for a resume, since it has made as many model calls as it may."""
    return invocation.status == "waiting" and invocation.at_limit
