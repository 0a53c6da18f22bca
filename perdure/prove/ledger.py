"""The ledger of a proof: a file outside of the workers, with a line for each step that starts and one for its end.

A step is one attempt of an activity: a model call, a tool, a function of a custom agent, or Perdure's own.
"""

from __future__ import annotations

import json
import os
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from temporalio import activity, client, worker
from temporalio.common import RawValue
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput

from perdure.activities.kept_steps import kept_before
from perdure.activities.stretches import watching
from perdure.journal.entries import EventLogged, ToolKept
from perdure.journal.tool_output import ToolOutput
from perdure.messages.session import CALL_MODEL, CodeInput, ModelInput, ToolInput
from perdure.messages.stretches import Stretch

When = Literal["start", "end"]
"""`start`: as a step is about to start; `end`: as it is done, before the server hears of it."""


@dataclass
class Step:
    """One attempt of one activity."""

    number: int
    """In order of starting, from 1, over all processes of a run."""
    kind: Literal["tool", "model", "code", "other"]
    name: str
    """The activity's type; of a tool, its name."""
    workflow: str
    activity: str
    """Which activity of which run of the workflow, and which step of it, if it takes several: equal in all attempts."""
    attempt: int
    """Of the activity."""
    process: int
    key: str | None = None
    """A tool call's idempotency key."""
    agent: str | None = None
    call_index: int | None = None
    """Of a model call."""
    ended: bool = False
    error: str | None = None
    """The type of the error with which it ended."""
    tried: int = 0
    """Attempts that failed in the activity of other steps."""
    kept: bool = False
    """Of an activity that takes several: what came of it was kept, and is not to be done again."""
    asked: bool = False
    """It only found that a confirmation is needed, or that an agent runs first: the tool has not run."""


@dataclass(frozen=True)
class Kill:
    """The place where a worker process kills itself."""

    step: int
    when: When


run_number: ContextVar[int] = ContextVar("run_number", default=1)
"""Inside of a tool: which of its runs this is in the session, from 1; a repeated attempt counts once."""


class Ledger:
    """Reads and appends lines of one file. Several processes may append, one after the other."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._steps: dict[int, Step] = {}
        self._activities: dict[tuple[str, str], list[str]] = defaultdict(list)
        self._before: dict[tuple[str, str], int] = {}
        self._killed: dict[int, Step] = {}
        """The step at whose start, or end, a process was killed."""
        self._notes: list[dict[str, Any]] = []

    @property
    def notes(self) -> list[dict[str, Any]]:
        """The entries that `note` wrote."""
        self._catch_up()
        return list(self._notes)

    @property
    def steps(self) -> list[Step]:
        """All steps so far."""
        self._catch_up()
        return list(self._steps.values())

    def note(self, **values: Any) -> None:
        """Write a line that means something to the scenario's own code."""
        self._append({"line": "note", **values})

    def runs_before(self, workflow: str, counts: Mapping[str, int]) -> None:
        """Say how often each tool ran before a session was cut off, or how many calls of a model its log leaves out.

        Args:
            workflow: The session's.
            counts: By tool; for a model, by `model of AGENT`.
        """
        for name, count in counts.items():
            self._append({"line": "before", "workflow": workflow, "name": name, "count": count})

    def start(self, step: Callable[[int], Step]) -> Step:
        """Write that a step starts, under the next number."""
        self._catch_up()
        started = step(len(self._steps) + 1)
        started.activity = self._activity_of(started)
        self._append({"line": "start", **{key: value for key, value in vars(started).items() if value is not None}})
        self._catch_up()
        return started

    def kill(self, step: Step) -> None:
        """Write that the process is killed at a step."""
        self._append({"line": "killed", **{key: value for key, value in vars(step).items() if value is not None}})

    def _activity_of(self, step: Step) -> str:
        """Return whose attempt a step is: its activity's, or that of one which had not kept it as its process died."""
        same = (before for before in reversed(self._steps.values()) if _call_of(before) == _call_of(step))
        before = next(same, None)
        if before is None:
            return step.activity
        is_cut_off = before.process != step.process and self._is_cut_off(before)
        return before.activity if is_cut_off or (before.error is not None and step.tried > 0) else step.activity

    def _is_cut_off(self, step: Step) -> bool:
        """Return whether a process died that had not kept a step, in an activity that takes several."""
        if "/" not in _several(step.activity) or step.kept:
            return False
        killed = self._killed.get(step.process)
        return not step.ended or (killed is not None and (step.kind == "tool" or killed.number == step.number))

    def keep(self, activity_name: str, calls: Sequence[str] | None = None) -> None:
        """Write what is kept of an activity that takes several steps: calls by id; or all that this process took."""
        self._append({"line": "kept", "process": os.getpid(), "activity": activity_name, "calls": calls})

    def end(self, step: Step) -> None:
        """Write how a step ended."""
        self._append({"line": "end", "number": step.number, "error": step.error, "asked": step.asked})

    @property
    def next_number(self) -> int:
        """The number of the next step."""
        self._catch_up()
        return len(self._steps) + 1

    def number_of(self, step: Step) -> int:
        """Return which run of its tool in its session a step is."""
        self._catch_up()
        key = (step.workflow, step.name)
        return self._before.get(key, 0) + self._activities[key].index(step.activity) + 1

    def left_out(self, workflow: str, agent: str) -> int:
        """Return how many model calls of an agent a session's log does not tell of."""
        self._catch_up()
        return self._before.get((workflow, f"model of {agent}"), 0)

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, ensure_ascii=False, default=str).encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, data)
        finally:
            os.close(descriptor)

    def _catch_up(self) -> None:
        for line in self._lines():
            match line.pop("line"):
                case "start":
                    step = Step(**line)
                    self._steps[step.number] = step
                    activities = self._activities[(step.workflow, step.name)]
                    if step.activity not in activities:
                        activities.append(step.activity)
                case "end":
                    step = self._steps[line["number"]]
                    step.ended, step.error, step.asked = True, line["error"], line["asked"]
                case "kept":
                    self._mark_kept(**line)
                case "killed":
                    step = Step(**line)
                    self._killed[step.process] = step
                case "before":
                    self._before[(line["workflow"], line["name"])] = line["count"]
                case _:
                    self._notes.append(line)

    def _mark_kept(self, process: int, activity: str, calls: Sequence[str] | None) -> None:
        for step in self._steps.values():
            several, _, call = step.activity.rpartition("/")
            if several == activity and (step.process == process if calls is None else call in calls):
                step.kept = True

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read)
            data = file.read()
        # A line that is being written is left for the next look.
        whole = data[: data.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            yield json.loads(line)


class StepInterceptor(client.Interceptor, worker.Interceptor):
    """Writes every step into the ledger, and kills its own process where it is told to."""

    def __init__(self, ledger: Ledger, kill: Kill | None = None) -> None:
        self._ledger = ledger
        self._kill = kill

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:
        """Watch the activities of a worker."""
        return _Watched(next, self._ledger, self._kill)


def _several(name: str) -> str:
    """Return the activity that took a step of several: its run and its id."""
    return name.rpartition("/")[0]


def _kept_calls(part: Stretch) -> Iterator[str]:
    yield from (failed.call_id for failed in part.failed if failed.call_id is not None)
    for entry in part.entries:
        if isinstance(entry, ToolKept):
            yield entry.call_id
        elif isinstance(entry, EventLogged):
            yield from (response.id or "" for response in entry.event.get_function_responses())


class _Watched(ActivityInboundInterceptor):
    def __init__(self, next: ActivityInboundInterceptor, ledger: Ledger, kill: Kill | None) -> None:
        super().__init__(next)
        self._ledger = ledger
        self._kill = kill

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:
        call = _call(input)
        if isinstance(call, ModelInput) and call.steps > 1:
            watching.set(self._step)
            name = f"{activity.info().workflow_run_id}/{activity.info().activity_id}"
            if (kept := kept_before()) is not None:
                self._ledger.keep(name, list(_kept_calls(kept)))
            result = await super().execute_activity(input)
            self._ledger.keep(name)
            return result

        async def run(given: Any) -> Any:
            if isinstance(given, ModelInput):
                input.args = [given, *input.args[1:]]
            return await super(_Watched, self).execute_activity(input)

        return await self._step(call, run)

    async def _step(self, call: Any, run: Callable[[Any], Awaitable[Any]]) -> Any:
        """Take a step: of an activity, or of one that takes several."""
        self._maybe_die(_describe(call)(self._ledger.next_number), "start")
        step = self._ledger.start(_describe(call))
        if step.kind == "tool":
            run_number.set(self._ledger.number_of(step))
        try:
            result = await run(self._skip_failed(call))
            step.asked = isinstance(result, ToolOutput) and _asks(result)
            return result
        except BaseException as error:
            step.error = getattr(error, "type", None) or type(error).__name__
            raise
        finally:
            self._ledger.end(step)
            self._maybe_die(step, "end")

    def _skip_failed(self, call: Any) -> Any:
        """Let a script go on behind the failed calls that a bare log does not hold."""
        if not isinstance(call, ModelInput):
            return call
        index = call.call_index + self._ledger.left_out(activity.info().workflow_id or "", call.agent)
        return call.model_copy(update={"call_index": index})

    def _maybe_die(self, step: Step, when: When) -> None:
        if self._kill == Kill(step.number, when):
            self._ledger.kill(step)
            # No handler runs, no buffer is flushed, the server hears nothing.
            os.kill(os.getpid(), signal.SIGKILL)


def _call_of(step: Step) -> tuple[object, ...]:
    return step.kind, step.name, step.workflow, step.key, step.agent, step.call_index


def _asks(output: ToolOutput) -> bool:
    """Return whether a tool has only asked: for a decision, a credential, or an agent to be run."""
    actions = output.actions
    asked = actions.requested_tool_confirmations or actions.requested_auth_configs
    return output.needs_confirmation or output.asks is not None or bool(asked)


def _describe(call: ToolInput | CodeInput | ModelInput | None) -> Callable[[int], Step]:
    info = activity.info()
    name, which = info.activity_type, f"{info.workflow_run_id}/{info.activity_id}"
    values: dict[str, Any] = {"kind": "other"}
    if isinstance(call, ToolInput):
        values = {"kind": "tool", "key": call.idempotency_key, "agent": call.agent}
        # Of an activity that takes several steps, each tool's run is one of its own.
        name, which = (call.tool, f"{which}/{call.function_call_id}") if name == CALL_MODEL else (name, which)
    elif isinstance(call, CodeInput):
        values = {"kind": "code"}
    elif isinstance(call, ModelInput):
        values = {"kind": "model", "agent": call.agent, "call_index": call.call_index}
        which = f"{which}/{call.call_index}" if call.steps > 1 else which

    def step(number: int) -> Step:
        return Step(
            number=number,
            name=name,
            workflow=info.workflow_id or "",
            activity=which,
            attempt=info.attempt,
            tried=call.tried if isinstance(call, ToolInput | ModelInput) else 0,
            process=os.getpid(),
            **values,
        )

    return step


def _call(input: ExecuteActivityInput) -> ToolInput | CodeInput | ModelInput | None:
    if activity.info().activity_type == CALL_MODEL:
        return input.args[0]
    raw: Any = input.args[0] if input.args else None
    raw = raw[0] if isinstance(raw, (list, tuple)) and raw else raw  # pyright: ignore[reportUnknownVariableType] -- a dynamic activity gets one sequence
    if not isinstance(raw, RawValue):
        return None
    value: dict[str, Any] = activity.payload_converter().from_payload(raw.payload, dict[str, Any])
    kinds = {"tool": ToolInput, "code": CodeInput}
    kind = kinds.get(value.get("kind", ""))
    return kind.model_validate(value) if kind is not None else None
