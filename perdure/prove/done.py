"""Counts the effects that a part of a run's journal tells of: they must not happen again. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from perdure.journal.entries import (
    ActivityKept,
    Entry,
    EventLogged,
    Failure,
    FailureCaught,
    InvocationSettled,
    ModelCalled,
    PlanLoaded,
    ToolKept,
    ToolRan,
    innermost,
)
from perdure.journal.events import Event
from perdure.plan.nodes import Plan
from perdure.prove.ledger import Step
from perdure.prove.outcome import Key, effects


def done_in(entries: Iterable[Entry], steps: Sequence[Step]) -> Counter[Key]:
    """Return which of a run's effects the first entries of its journal tell of."""
    teller = _Done()
    for entry in entries:
        within = innermost(entry)
        # That an agent failed which a tool runs is told by the tool.
        if within is entry or not isinstance(within, InvocationSettled):
            teller.add(within)
    # Not every call is an activity, and one that failed beside another may not have run.
    ran = effects(steps)
    return Counter({effect: min(count, ran[effect]) for effect, count in teller.done.items() if ran[effect]})


@dataclass(frozen=True)
class _Call:
    effect: Key
    invocation_id: str
    run: str


class _Done:
    """Counts what a journal says has happened."""

    def __init__(self) -> None:
        self.done: Counter[Key] = Counter()
        self._plan: Plan | None = None
        self._calls: dict[str, _Call] = {}
        """Calls that have not returned."""
        self._broken: set[str] = set()
        """Those of them whose tool has run, and failed: others wait for a confirmation, say."""
        self._caught: list[tuple[FailureCaught, set[str]]] = []
        """What custom agents met, with the calls that failed of it."""
        self._dealt_with: set[str] = set()
        """Calls that nothing tries again, unless the agent fails by them after all."""
        self._again: set[str] = set()
        """Those of them that a resume tries again."""
        self._counted: list[Failure] = []
        """Failures that are told once more as an agent fails by them."""

    def add(self, entry: Entry) -> None:
        match entry:
            case EventLogged():
                self._log(entry.event, entry.run)
            case PlanLoaded():
                self._plan = entry.plan
            case ToolKept():
                if not entry.output.needs_confirmation:
                    self._end(entry.invocation_id, entry.call_id)
            case ToolRan(outcome="failed" | "stopped"):
                self._broken.add(entry.call_id)
            case ModelCalled():
                self.done[(f"model of {entry.agent}", "")] += 1
            case ActivityKept():
                self.done[(f"function {entry.name}", "")] += 1
            case FailureCaught():
                self._catch(entry)
            case InvocationSettled(status="failed"):
                self._fail(entry.invocation_id)
                self._count_functions(entry.failures)
                self._dealt_with -= self._again
                self._again.clear()
                self._counted.clear()
            case _:
                pass

    def _log(self, event: Event, run: str) -> None:
        for call in event.get_function_calls():
            effect = (f"tool {call.name}", f"{event.invocation_id}/{call.id}")
            self._calls[call.id or ""] = _Call(effect, event.invocation_id, run)
        for response in event.get_function_responses():
            asked = event.actions.requested_tool_confirmations.keys() | event.actions.requested_auth_configs.keys()
            if response.id not in asked:
                self._end(event.invocation_id, response.id)

    def _end(self, invocation_id: str, call_id: str | None) -> None:
        call = self._calls.pop(call_id or "", None)
        if call is not None:
            # A confirmation may let the tool run in a later invocation than the call's.
            self.done[(call.effect[0], f"{invocation_id}/{call_id}")] += 1

    def _catch(self, entry: FailureCaught) -> None:
        failed: set[str] = set()
        if not entry.failures:
            self._give_up(entry)
        if entry.sub_run:
            failed = self._fail(entry.invocation_id, entry.sub_run)
            self._again -= self._below(entry.invocation_id, entry.sub_run)
        self._count_functions(entry.failures)
        self._dealt_with |= failed
        self._caught.append((entry, failed))

    def _give_up(self, entry: FailureCaught) -> None:
        of_invocation = [known for known in self._caught if known[0].invocation_id == entry.invocation_id]
        numbers = entry.again or range(len(of_invocation))
        for number, (caught, failed) in enumerate(of_invocation):
            if number in numbers and caught.agent == entry.agent:
                self._again |= failed
                self._counted += caught.failures

    def _fail(self, invocation_id: str, run: str = "") -> set[str]:
        """Count what was called in a run, or underneath it, and did not return: it has failed. Default: in any."""
        failed = (self._below(invocation_id, run) & self._broken) - self._dealt_with
        self._broken -= failed
        self.done.update(self._calls[call_id].effect for call_id in failed)
        return failed

    def _below(self, invocation_id: str, run: str) -> set[str]:
        return {
            call_id
            for call_id, call in self._calls.items()
            if call.invocation_id == invocation_id and f"{call.run}/".startswith(f"{run}/" if run else "")
        }

    def _count_functions(self, failures: Iterable[Failure]) -> None:
        for failure in failures:
            is_function = self._plan is not None and failure.step in self._plan.activities
            if failure in self._counted:
                self._counted.remove(failure)
            elif is_function:
                self.done[(f"function {failure.step}", "")] += 1
