"""Routes of a session's records: its effects, the plans of its invocations, explanations."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, HTTPException, Query, Response

from perdure.api.base.backend import BackendOf, Segment, check_reserved
from perdure.api.v1.addressing import INVOCATION, SESSION, WhereOf
from perdure.api.v1.record_schemas import AppPlan, EffectOf, EffectsList, Explanation, PinnedPlan
from perdure.plan.diff import diff_plans
from perdure.views.explanation import EXPLAINED

router = APIRouter()


@router.get(SESSION + "/effects")
async def list_effects(
    where: WhereOf,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> EffectsList:
    """Return what a session's tools did, call by call: attempts, times, outcome, idempotency key."""
    async with backend.patience():
        page = await where.runner.effects_page(**where.key.arguments, since=since)
    told = [EffectOf(**effect.model_dump()) for effect in page.effects[:limit]]
    return EffectsList(effects=told, next=since + len(told), total=page.total)


@router.get("/apps/{app_name}/plan", response_model=AppPlan)
async def get_app_plan(app_name: Segment, backend: BackendOf) -> Response:
    """Return the plan of an app that the server was given."""
    check_reserved(app_name)
    plan = backend.plans.get(app_name)
    if plan is None:
        raise HTTPException(404, f"this server was not given the code of an app {app_name!r}")
    return _json(AppPlan(digest=plan.digest, plan=plan))


@router.get(INVOCATION + "/plan", response_model=PinnedPlan)
async def get_plan_of_invocation(where: WhereOf, invocation_id: Segment, backend: BackendOf) -> Response:
    """Return the plan that an invocation is pinned to, and how the app's plan of today differs from it."""
    async with backend.patience():
        plan = await where.runner.plan(**where.key.arguments, invocation_id=invocation_id)
    today = backend.plans.get(where.key.app)
    changes = list(diff_plans(plan, today)) if plan is not None and today is not None else None
    return _json(
        PinnedPlan(
            invocation_id=invocation_id,
            digest=plan.digest if plan is not None else None,
            plan=plan,
            app_digest=today.digest if today is not None else None,
            changes=changes,
        )
    )


@router.get(SESSION + "/explain")
async def explain_session(
    where: WhereOf,
    backend: BackendOf,
    since: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=100)] = EXPLAINED,
) -> Explanation:
    """Return what a session awaits, why it does not go on, and what a resume would do; nothing is done.

    Of many invocations that are not finished, the page from `since` on; `next` is where it goes on.
    """
    async with backend.patience():
        return Explanation.of(await where.runner.explain(**where.key.arguments, since=since, limit=limit))


@router.get(INVOCATION + "/explain")
async def explain_invocation(where: WhereOf, invocation_id: Segment, backend: BackendOf) -> Explanation:
    """Return the same of one invocation."""
    async with backend.patience():
        return Explanation.of(await where.runner.explain(**where.key.arguments, invocation_id=invocation_id))


def _json(value: AppPlan | PinnedPlan) -> Response:
    # A plan holds ADK's own types, which have no fields that are not set.
    return Response(value.model_dump_json(by_alias=True, exclude_none=True), media_type="application/json")
