"""Runs a custom agent: its author's orchestration, in the workflow, with the class loaded inside of the sandbox."""

from __future__ import annotations

import asyncio
import copy
import typing
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import to_jsonable_python
from temporalio import workflow

from perdure.agents.custom import BaseAgent, InvocationContext, SessionSnapshot
from perdure.agents.frames import is_users
from perdure.compiler.registry import Registry, lookup
from perdure.errors import EffectFailed, error_text
from perdure.journal.entries import MAX_EVENT_BYTES, ActivityKept, FailureCaught, payload_size
from perdure.journal.events import Event, EventActions
from perdure.journal.nesting import MAX_LEVELS, MAX_LOGGED_LEVELS, is_too_deep
from perdure.journal.runs import AgentRun
from perdure.logs import get_logger
from perdure.logs.failures import fields_of
from perdure.messages.keys import SessionKey
from perdure.messages.session import CodeInput
from perdure.plan.nodes import CustomNode, Node, ToolOptions
from perdure.rules.failures import reference
from perdure.workflows.agents.caught_failures import Caught
from perdure.workflows.agents.scope import Scope

_STEP = "_run_async_impl"
_LOGGER = "perdure.session"
_log = get_logger(_LOGGER)

_ROOM_BYTES = 400_000
"""Arguments up to this size leave room in the payload for what the journal gained."""


async def run_custom(scope: Scope, node: CustomNode, run: AgentRun) -> bool:
    """Run a custom agent to the end of its `_run_async_impl`.

    What it logged, ran and started since its last checkpoint is not logged, run or started again: the n-th event and
    sub-agent is the n-th again, and a call of equal arguments is the same call again.

    Raises:
        EffectFailed: Its code raised, or a step underneath failed.
    """
    # Not the plan's app: a journal may have come from an app of another name.
    agent = _load(SessionKey.parse(workflow.info().workflow_id).app, node)
    context = CustomContext(scope, node, run, agent)
    ended = False
    try:
        with scope.progress.own_work():
            async for event in agent._run_async_impl(context):  # pyright: ignore[reportPrivateUsage] -- ADK's name
                scope.progress.check_stopped()
                ended = await context.take(event)
    except asyncio.CancelledError:
        raise
    except EffectFailed as failure:
        context.caught.give_up(failure)
        raise
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        context.caught.give_up(None)
        known = reference(scope.invocation.id, node.name, _STEP)
        _log.warning("custom agent failed", agent=node.name, **fields_of(error, _LOGGER, known))
        raise EffectFailed(node.name, _STEP, _where(error)) from error
    context.end()
    if not ended:
        # Its author logged no end; the journal needs one to know where its parent went on.
        scope.end(node, run, hidden=True)
    return context.escalated


class CustomContext(InvocationContext):
    """The context of a custom agent: ADK's, on top of the invocation's scope."""

    def __init__(self, scope: Scope, node: CustomNode, run: AgentRun, agent: BaseAgent) -> None:
        key = SessionKey.parse(workflow.info().workflow_id)
        super().__init__(
            invocation_id=scope.invocation.id,
            branch=run.branch,
            agent=agent,
            user_content=scope.invocation.message.content,
            is_resumable=scope.plan.resumable,
            session=SessionSnapshot(app_name=key.app, user_id=key.user, id=key.session, read=lambda: self._read()),
        )
        self._scope = scope
        self._node = node
        self._run = run
        self._begun: Counter[str] = Counter()
        """Runs of each sub-agent since the last checkpoint."""
        self._past_own = list(run.own)
        self._past_runs = {(past.agent, past.nth): past for past in run.children}
        self._past_results = list(run.activities)
        self._whose: dict[str, Any] = {"invocation_id": scope.invocation.id, "agent": node.name, "branch": run.branch}
        self._whose["run"] = scope.name_of(run)
        self._ended = False
        self.caught = Caught(scope, self._whose)
        self._calls = 0
        self._logged = {event.id for event in run.log}
        self.escalated = run.escalated
        if run.state is not None:
            self.agent_states[node.name] = run.state

    def _read(self) -> tuple[dict[str, Any], list[Event]]:
        projection = self._scope.projection
        return projection.visible_state(self.invocation_id), projection.own_events

    async def take(self, event: Event) -> bool:
        """Log an event that the agent yielded, unless it is logged already; returns whether it is the agent's end."""
        if event.id and event.id in self._logged:
            return False
        if event.author not in ("", self._node.name):
            raise ValueError(f"an event of author {event.author!r}; yield events with author=self.name")
        event = event.model_copy(update={"id": "", "author": self._node.name, "branch": event.branch or self.branch})
        # As JSON, and a copy: what the agent does to a value later must not change the log.
        actions = EventActions.model_validate(to_jsonable_python(event.actions, exclude_none=True))
        event = event.model_copy(update={"actions": actions})
        if is_too_deep(event, MAX_LOGGED_LEVELS):
            raise ValueError(
                f"an event of more than {MAX_LOGGED_LEVELS} lists and objects within each other; yield a text"
            )
        is_state = event.actions.agent_state is not None or bool(event.actions.end_of_agent)
        if is_state:
            self.caught.forget()
        self.caught.go_on()
        if not is_state and self._past_own:
            self._past_own.pop(0)
            return False
        if is_state:
            self._past_own.clear()
            self._past_runs.clear()
            self._begun.clear()
            self._past_results.clear()
            self._calls = 0
        hidden = is_state and not event.parts and not self._scope.plan.resumable
        self.escalated |= bool(event.actions.escalate)
        await self._scope.log_event(event, self._run, hidden=hidden)
        return bool(event.actions.end_of_agent)

    def end(self) -> None:
        """End: later results of gathered calls, for which the agent did not wait, are nobody's any more."""
        self._ended = True
        self.caught.end()

    async def run_activity(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a function of `App(activities=[…])` as an activity; its result is kept until the next checkpoint.

        Raises:
            EffectFailed: It failed, and retrying did not help.
        """
        name = fn.__name__
        if name not in self._scope.plan.activities:
            raise EffectFailed(self._node.name, name, f"{name!r} is not listed in App(activities=[…]); add it there")
        result_type = typing.get_type_hints(fn).get("return", Any)
        self.caught.go_on()
        index, self._calls = self._calls, self._calls + 1
        call = CodeInput(name=name, args=args, kwargs=kwargs)
        arguments = call.arguments
        kept = self._kept(name, arguments, index)
        if isinstance(kept, FailureCaught):
            raise self.caught.met_again(kept)
        if kept is not None:
            return TypeAdapter(result_type).validate_python(kept.result)
        if is_too_deep(call):
            cause = (
                f"its arguments have more than {MAX_LEVELS} lists and objects within each other; pass a text instead"
            )
            raise EffectFailed(self._node.name, name, cause)
        if payload_size(call) > MAX_EVENT_BYTES:
            cause = f"its arguments have {payload_size(call) / 1e6:.1f} MB; pass a reference to the data instead"
            raise EffectFailed(self._node.name, name, cause)
        self._scope.progress.check_stopped()
        call = self._told(call, index)
        with self._scope.progress.waiting_below():
            try:
                with self._scope.slice_under_way(call.journal) as witness:
                    result = await self._scope.activities.code(self._node.name, call, ToolOptions(), witness)
            except EffectFailed as failure:
                self.caught.met(failure, name=name, index=index, arguments=arguments)
                raise
        if not self._ended:
            kept = ActivityKept(name=name, index=index, arguments=arguments, result=result, **self._whose)
            self._scope.log.append(kept)
        return TypeAdapter(result_type).validate_python(result)

    def _kept(self, name: str, arguments: str, index: int) -> ActivityKept | FailureCaught | None:
        """Take out what came of the same call when the agent was entered before, if it was.

        Not by its number: calls that are gathered are made in another order where some have their results already.
        """
        for kept in self._past_results:
            if kept.name == name and (kept.index == index if kept.arguments is None else kept.arguments == arguments):
                self._past_results.remove(kept)
                return kept
        return None

    def _told(self, call: CodeInput, index: int) -> CodeInput:
        """Return a call that says whose it is and, beside arguments that leave room, what the journal gained."""
        update: dict[str, object] = {"agent": self._node.name, "invocation_id": self.invocation_id}
        update |= {"branch": self.branch, "index": index}
        if payload_size(call) <= _ROOM_BYTES:
            update["journal"] = self._scope.slice()
        return call.model_copy(update=update)

    async def run_agent(self, agent: BaseAgent) -> AsyncGenerator[Event, None]:
        """Run an agent underneath and yield its events; those of before come again, but are not logged again.

        Raises:
            EffectFailed: A step underneath failed.
        """
        node = self._node_of(agent)
        if node is None:
            raise LookupError(f"agent {agent.name!r} is no sub-agent of {self._node.name!r}; add it to its sub_agents")
        self.caught.go_on()
        run = self._next_run(node.name)
        for event in list(run.log):
            yield event
        if run.failure is not None:
            raise self.caught.met_again(run.failure)
        fresh: list[Event] = []
        # No wait_condition: between its end and the next step of this coroutine the invocation would look idle.
        changed = asyncio.Event()
        below = {name for name in self._scope.plan.nodes if node.name in self._scope.plan.path(name)}

        def listen(event: Event) -> None:
            if event.author in below and event.invocation_id == self.invocation_id:
                self._logged.add(event.id)
                fresh.append(event)
                changed.set()

        self._scope.log.listeners.append(listen)
        task = asyncio.create_task(self._scope.run_agent(self._scope, node, run))
        task.add_done_callback(lambda _: changed.set())
        try:
            while not task.done() or fresh:
                while fresh:
                    yield fresh.pop(0)
                with self._scope.progress.waiting_below():
                    await changed.wait()
                changed.clear()
            self.escalated |= task.result()
        except EffectFailed as failure:
            self.caught.met(failure, sub_agent=node.name, sub_run=self._scope.name_of(run))
            raise
        finally:
            self._scope.log.listeners.remove(listen)
            if not task.done() and not _is_dropped(task):
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    def _next_run(self, name: str) -> AgentRun:
        """Return the next agent run of an agent since the last checkpoint: one that is entered again, or a new one."""
        self._begun[name] += 1
        nth = self._begun[name]
        run = self._past_runs.get((name, nth)) or self._run.begin(name, self.branch, nth)
        # An author's own event may have named another.
        run.branch = self.branch
        return run

    def _node_of(self, agent: BaseAgent) -> Node | None:
        """Return a sub-agent's node: by name, or by place if it was renamed under the pinned plan."""
        plan = self._scope.plan
        node = plan.nodes.get(agent.name)
        if node is not None:
            return node if self._node.name in plan.path(node.name) else None
        places = [index for index, child in enumerate(self.agent.sub_agents) if child is agent]
        same_length = len(self.agent.sub_agents) == len(self._node.sub_agents)
        return self._node.sub_agents[places[0]] if places and same_length else None


def _is_dropped(task: asyncio.Task[bool]) -> bool:
    """Return whether a worker that ends has dropped the workflow: Python clears it away, and nothing runs any more."""
    try:
        return asyncio.get_running_loop() is not task.get_loop()
    except RuntimeError:
        return True


def _load(app: str, node: CustomNode) -> BaseAgent:
    """Return the agent with its class from the sandbox's own copy of its module, where stray calls are caught."""
    agent = cast(Registry, lookup(app)).custom_agent(node.name, node.code)
    module, _, qualname = node.code.partition(":")
    # Not importlib: only this goes through the sandbox's importer.
    silent = workflow.SandboxImportNotificationPolicy.SILENT
    with workflow.unsafe.sandbox_import_notification_policy(silent):
        found: Any = __import__(module, fromlist=["_"])
    for name in qualname.split("."):
        found = getattr(found, name)
    guarded = copy.copy(agent)
    object.__setattr__(guarded, "__class__", found)
    # The agent may have another name by now than in the plan that the invocation is pinned to.
    object.__setattr__(guarded, "name", node.name)
    return guarded


def _where(error: BaseException) -> str:
    """Return an error with the line of the agent's code that raised it."""
    trace = error.__traceback__
    line = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_users(code.co_filename):
            line = f" ({code.co_filename.rpartition('/')[2]}:{trace.tb_lineno})"
        trace = trace.tb_next
    used = getattr(error, "qualified_name", None)
    if type(error).__name__ == "RestrictedWorkflowAccessError":
        return (
            f"it uses {used}, which is not deterministic{line}; do that in a function of App(activities=[…]) and await"
            " ctx.run_activity(fn, …), or in a tool"
        )
    return f"{error_text(error)}{line}"
