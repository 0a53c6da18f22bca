"""The journal of a stretch of steps, as the activity that takes them knows it: the session's, and what they add. Pure.

What an agent does next is decided as in its workflow, by `perdure.rules.next_step`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from perdure.journal.compact_json import payload_size
from perdure.journal.entries import Entry, EventLogged, ToolKept
from perdure.journal.events import Event
from perdure.journal.projection import SHARED, Invocation, Projection
from perdure.journal.run_tree import RunTree
from perdure.journal.runs import Standing
from perdure.journal.tool_output import ToolOutput
from perdure.messages.session import ModelInput, ModelOutput, ToolInput
from perdure.plan.contents import types
from perdure.plan.nodes import ADK_OPTIONS, SET_MODEL_RESPONSE, LlmNode, Plan, ToolOptions, ToolPlan
from perdure.recovery.rebuilding import Rebuilder
from perdure.recovery.rebuilt_entries import tool_ran
from perdure.rules.ids import OWN_IDS, another_id, call_ids, called, with_call_ids
from perdure.rules.llm_turns import find_turn
from perdure.rules.model_answers import refused_transfer
from perdure.rules.model_calls import why_no_call
from perdure.rules.next_call import Facts, Runs, next_of_call
from perdure.rules.next_step import AskModel, RunCalls, step_ahead
from perdure.rules.tool_responses import is_plain

_SMALL_BYTES = 100_000
"""Up to here what tools returned is logged here; what is more is kept, and its workflow logs it."""


@dataclass(frozen=True)
class CallRun:
    """A call whose tool is to run."""

    call: types.FunctionCall
    tool: ToolPlan
    request: ToolInput

    @property
    def id(self) -> str:
        """The call's id."""
        return self.request.function_call_id


class StretchLog:
    """Knows what an agent does next, and logs what came of it as its workflow would."""

    def __init__(self, call: ModelInput, projection: Projection, attempt: str) -> None:
        """Begin with the session as it was when the activity was scheduled, which stays as it is.

        Args:
            call: The model call with which it begins.
            projection: The session.
            attempt: The attempt of the activity: no event of another one has an id of this one's.
        """
        self._call = call
        self._rebuilder = Rebuilder(projection.entries, attempt)
        # The same in each attempt, and behind a reset, so that tools that run again get the same idempotency keys.
        self._seed = f"{call.invocation_id}/{call.run}/{call.call_index}"
        self._begin = self._measured = len(projection.entries)
        self._bytes = 0
        self._tree = RunTree(self.plan, self._invocation.agent or self.plan.root.name)
        self._in_tree = 0
        """How many of the invocation's entries."""

    @property
    def projection(self) -> Projection:
        """The session, with what the stretch has added."""
        return self._rebuilder.projection

    @property
    def entries(self) -> tuple[Entry, ...]:
        """What the stretch has added."""
        return tuple(self.projection.entries[self._begin :])

    @property
    def size(self) -> int:
        """Bytes of what the stretch has added, as JSON."""
        entries = self.projection.entries
        self._bytes += sum(map(payload_size, entries[self._measured :]))
        self._measured = len(entries)
        return self._bytes

    @property
    def plan(self) -> Plan:
        """The invocation's plan."""
        return self.projection.plans[self._call.plan or self._invocation.plan or ""]

    @property
    def node(self) -> LlmNode:
        """The agent."""
        node = self.plan.nodes[self._call.agent]
        assert isinstance(node, LlmNode), "it has a model"
        return node

    @property
    def _invocation(self) -> Invocation:
        return self.projection.invocations[self._call.invocation_id]

    # What comes next.

    def ahead(self) -> ModelInput | tuple[CallRun, ...]:
        """Return what the agent does next, if that is all: its model call, or the calls whose tools run; or none."""
        entries = self._invocation.entries
        for entry in entries[self._in_tree :]:
            self._tree.add(entry)
        self._in_tree = len(entries)
        facts = Facts(self.plan, self.projection, self._invocation)
        turn = find_turn(facts, self.node, self._tree.runs[self._call.run])
        match step_ahead(facts, self.node, turn):
            case AskModel() if why_no_call(self.plan, self.node, self._invocation, Counter()) is None:
                return self._model_call()
            case RunCalls(calls):
                return self._runs(facts, turn.step, calls)
            case _:
                return ()

    def _runs(self, facts: Facts, step: Standing, calls: Sequence[types.FunctionCall]) -> tuple[CallRun, ...]:
        """Return the runs of an answer's calls, if there is nothing but those to do."""
        waiting = step.calling.long_running_tool_ids if step.calling is not None else None
        found = [(call, next_of_call(facts, self.node, step, call)) for call in calls]
        several = self.plan.adk is not None and len(calls) > 1
        runs = [(call, what.tool) for call, what in found if isinstance(what, Runs) and self._is_usual(what, several)]
        if waiting or len(runs) < len(calls):
            return ()
        return tuple(self._run_of(call, tool) for call, tool in runs)

    def _model_call(self) -> ModelInput:
        logged = (entry.event.id for entry in self.entries if isinstance(entry, EventLogged))
        first = self._call.begun_with or (next(logged, None) if self.plan.adk is not None else None)
        number = self.projection.model_calls[self._call.agent]
        return self._call.model_copy(update={"call_index": number, "begun_with": first, "tried": 0, "answer_id": None})

    def begun_together(self, runs: Sequence[CallRun]) -> Sequence[Sequence[CallRun]]:
        """Return the calls of an answer in the groups that begin one after the other."""
        return [[run] for run in runs] if self.plan.adk is not None else [runs]

    def _is_usual(self, what: Runs, several: bool) -> bool:
        """Return whether a tool runs as any other: not once at the most, by other code, or with options of its own.

        Of several of google.adk's only those that wait for nothing, which end before the next one begins.
        """
        tool = what.tool
        if several and not tool.runs_through:
            return False
        special = tool.at_most_once or tool.agent or tool.delegates or tool.runs_nodes or tool.retries or what.returned
        if tool.kind != "function" or tool.confirmation != "never" or special:
            return False
        return tool.options == (ToolOptions() if self.plan.adk is None else ADK_OPTIONS)

    def _run_of(self, call: types.FunctionCall, tool: ToolPlan) -> CallRun:
        adk = self.plan.adk is not None
        request = ToolInput(
            agent=self._call.agent,
            tool=tool.name,
            args=call.args or {},
            function_call_id=call.id or "",
            invocation_id=self._call.invocation_id,
            branch=self._call.branch,
            key_salt=self.projection.key_salt,
            run=self._call.run if adk else "",
            reads=adk or tool.name == SET_MODEL_RESPONSE,
            state=self.projection.visible_state(self._call.invocation_id) if tool.needs_context else None,
        )
        return CallRun(call, tool, request)

    # What came of it.

    def answered(self, call: ModelInput, output: ModelOutput, time: float) -> None:
        """Log a model's answer."""
        self._rebuilder.model_answered(call, self._with_ids(call, output), time)

    def _with_ids(self, call: ModelInput, output: ModelOutput) -> ModelOutput:
        """Give ids to calls that have none of their model's, by what is called: so no other call gets one again.

        google.adk has given random ones to those. What another call has already, or may have in a branch, is changed.
        """
        adk, taken = self.plan.adk is not None, set(self.projection.call_ids)

        def id_of(place: int, made: types.FunctionCall) -> str:
            id = next(call_ids(self._seed, "model", call.call_index, called(place, made)))
            if not made.id or (adk and made.id.startswith(OWN_IDS)):
                return id
            found = another_id(made.id, id) if call.branch is not None or made.id in taken else made.id
            taken.add(found)
            return found

        event = with_call_ids(output.answer, id_of)
        if output.step is None:
            return output.model_copy(update={"event": event})
        return output.model_copy(update={"step": output.step.model_copy(update={"events": (event,)})})

    def returned(self, runs: Sequence[CallRun], outputs: Mapping[str, ToolOutput], time: float) -> bool:
        """Log what tools returned; returns whether the stretch may go on, or its workflow has to look at it.

        Args:
            runs: The calls of the model's answer.
            outputs: What their tools returned, by call id; those are missing that failed.
            time: When.
        """
        small = sum(map(payload_size, outputs.values())) <= _SMALL_BYTES
        usual = small and len(outputs) == len(runs) and all(map(is_plain, outputs.values()))
        if self.plan.adk is not None and len(runs) > 1:
            usual = usual and not any(map(writes, outputs.values()))
        written = [key for output in outputs.values() for key in (*output.actions.state_delta, *output.state)]
        usual = usual and not read_by_others(self._call, written)
        calling = self.projection.event_of_call(runs[0].id)
        if usual and calling is not None:
            return self._rebuilder.all_returned(calling, outputs, time)
        for run in runs:
            if run.id in outputs:
                for entry in self.kept(run.id, outputs[run.id]):
                    self._rebuilder.take(entry)
        return False

    def settled(self, run: CallRun, output: ToolOutput) -> ToolOutput:
        """Return a tool's output as the session takes it: one that hands over to nobody says so."""
        target = output.actions.transfer_to_agent
        if target is None or target in self.plan.nodes or self.plan.adk is not None:
            return output
        return refused_transfer(self.plan, run.tool.name, output)

    def kept(self, call_id: str, output: ToolOutput) -> list[Entry]:
        """Return the entries by which a tool that returned does not run again, while its response is not logged."""
        if output.asks is not None:
            # Its agent has not begun: it asks again.
            return []
        entries: list[Entry] = []
        calling = self.projection.event_of_call(call_id)
        if output.times is not None and calling is not None:
            entries.append(tool_ran(self.projection, self._invocation, calling, call_id, output.times))
        output = output.model_copy(update={"times": None, "call": None})
        entries.append(ToolKept(invocation_id=self._call.invocation_id, call_id=call_id, output=output))
        return entries

    @property
    def blank(self) -> Event:
        """An event of the agent's without content."""
        return Event(author=self._call.agent, branch=self._call.branch, invocation_id=self._call.invocation_id)


def read_by_others(call: ModelInput, keys: Iterable[str]) -> bool:
    """Return whether others who are at work read keys of the state: the branches beside it, or other sessions."""
    return any(call.branch is not None or key.startswith(SHARED) for key in keys)


def writes(output: ToolOutput) -> bool:
    """Return whether a tool has written into the state, or what it did says more than its response."""
    return not is_plain(output) or bool(output.actions.state_delta or output.state)
