"""The activities around an invocation's start: they load plans, write shared state, look search attributes up."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio import activity
from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from perdure.activities.heartbeats import beating
from perdure.activities.payload_checks import MAX_LOCAL_BYTES
from perdure.compiler.registry import AnyRegistry
from perdure.errors import SharedStateFull
from perdure.journal.compact_json import payload_size
from perdure.logs import get_logger
from perdure.messages.search_attributes import KEYS
from perdure.messages.session import (
    LOAD_PLAN,
    LoadPlanInput,
    LoadPlanOutput,
)
from perdure.messages.shared_state import (
    SHARE_STATE,
    ShareStateInput,
)
from perdure.sessions.shared_state import read_state, share_state

_log = get_logger("perdure.worker")

_PASSING = frozenset({RPCStatusCode.UNAVAILABLE, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.RESOURCE_EXHAUSTED})
"""Failures after which the next invocation asks again."""


class PlanActivities:
    """Loads an app's plan, and writes shared state."""

    def __init__(
        self, registry: AnyRegistry, client: Client, search_attributes: SearchAttributes, *, notices: bool = False
    ) -> None:
        self._registry = registry
        self._client = client
        self._search_attributes = search_attributes
        self._notices = notices

    @activity.defn(name=LOAD_PLAN)
    async def load_plan(self, request: LoadPlanInput) -> LoadPlanOutput | None:
        """Return the app's plan as this worker has it; the plan itself only if the session does not know it.

        As a local activity it asks nobody, and returns `None` where it would have to.
        """
        if activity.info().is_local:
            return self._at_hand(request)
        with beating():
            return await self._load(request)

    def _at_hand(self, request: LoadPlanInput) -> LoadPlanOutput | None:
        exist = self._search_attributes.known
        if exist is None or self._registry.plan.shared_state:
            return None
        loaded = self._loaded(request, None, exist)
        return loaded if payload_size(loaded) <= MAX_LOCAL_BYTES else None

    async def _load(self, request: LoadPlanInput) -> LoadPlanOutput:
        plan = self._registry.plan
        shared: dict[str, Any] | None = None
        if plan.shared_state:
            app, user = await asyncio.gather(
                read_state(self._client, plan.app, None), read_state(self._client, plan.app, request.user_id)
            )
            shared = app | user
        return self._loaded(request, shared, await self._search_attributes.exist())

    def _loaded(self, request: LoadPlanInput, shared: dict[str, Any] | None, search_attributes: bool) -> LoadPlanOutput:
        plan = self._registry.plan
        return LoadPlanOutput(
            digest=plan.digest,
            plan=None if request.known == plan.digest else plan,
            shared=shared,
            search_attributes=search_attributes,
            notices=self._notices,
        )

    @activity.defn(name=SHARE_STATE)
    async def share_state(self, request: ShareStateInput) -> None:
        """Write `user:` and `app:` keys into the workflows that hold them, which start with the first write.

        Raises:
            ApplicationError: There would be too much of them. Not retried.
        """
        try:
            with beating():
                await share_state(self._client, self._registry.plan.app, request)
        except SharedStateFull as error:
            raise ApplicationError(str(error), type="PayloadTooLarge", non_retryable=True) from error


class SearchAttributes:
    """Perdure's search attributes in one namespace: looked up once, registered where the server lets a worker do so."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._found: asyncio.Task[bool] | None = None

    @property
    def known(self) -> bool | None:
        """Whether all of them exist, if that has been looked up."""
        found = self._found
        usable = found is not None and found.done() and not found.cancelled() and found.exception() is None
        return found.result() if found is not None and usable else None

    async def exist(self) -> bool:
        """Return whether all of them exist."""
        if self._found is None:
            self._found = asyncio.create_task(self._ensure())
        return await asyncio.shield(self._found)

    async def _ensure(self) -> bool:
        try:
            missing = await self._missing()
            if missing:
                request = AddSearchAttributesRequest(namespace=self._client.namespace, search_attributes=missing)
                await self._client.operator_service.add_search_attributes(request)
                missing = await self._missing()
        except RPCError as error:
            if error.status in _PASSING:
                self._found = None
            _log.warning(
                "search attributes are missing; sessions are listed by workflow type and id",
                wanted=[key.name for key in KEYS],
                reason=error.message,
            )
            return False
        return not missing

    async def _missing(self) -> dict[str, IndexedValueType.ValueType]:
        request = ListSearchAttributesRequest(namespace=self._client.namespace)
        found = (await self._client.operator_service.list_search_attributes(request)).custom_attributes
        return {
            key.name: IndexedValueType.ValueType(int(key.indexed_value_type)) for key in KEYS if key.name not in found
        }
