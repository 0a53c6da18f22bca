"""What a journal tells of a run's effects, failed ones too: no server needed."""

from __future__ import annotations

from perdure.journal.entries import (
    Entry,
    EventLogged,
    Failure,
    FailureCaught,
    InvocationSettled,
    ModelCalled,
    PlanLoaded,
    ToolKept,
    ToolOutput,
    ToolRan,
)
from perdure.plan.nodes import CustomNode, LlmNode, Plan
from perdure.prove.done import done_in
from perdure.prove.ledger import Step
from tests.prove.test_outcome import called, responded, tool

PAY = ("tool pay", "e-1/a")
PRICE = ("function price", "")
NO_PAY = Failure(agent="clerk", step="pay", cause="no")
NO_PRICE = Failure(agent="boss", step="price", cause="no")
GAVE_UP = FailureCaught(invocation_id="e-1", agent="boss")


def plan() -> PlanLoaded:
    below = (LlmNode(name="clerk", model="m"), LlmNode(name="other", model="m"))
    boss = CustomNode(name="boss", sub_agents=below, code="a:B")
    return PlanLoaded(plan=Plan(app="a", resumable=True, root=boss, activities=("price",)), digest="d")


def failed(failure: Failure) -> InvocationSettled:
    return InvocationSettled(invocation_id="e-1", status="failed", failures=(failure,))


def broke(call_id: str) -> ToolRan:
    return ToolRan(call_id=call_id, outcome="failed", started=1.0, ended=2.0)


def test_a_journal_tells_what_was_done() -> None:
    steps = [tool(1, "e-1/a"), tool(2, "e-1/b", activity="run/2", error="RuntimeError"), tool(3, "e-1/b")]
    calling = [EventLogged(event=called("a")), EventLogged(event=called("b"))]
    assert done_in([*calling, ModelCalled(agent="clerk")], steps) == {}
    kept = ToolKept(invocation_id="e-1", call_id="a", output=ToolOutput(result=1))
    logged = EventLogged(event=responded("a"))
    assert done_in([*calling, kept, logged], steps) == {("tool pay", "e-1/a"): 1}
    both = {("tool pay", "e-1/a"): 1, ("tool pay", "e-1/b"): 1}
    assert done_in([*calling, kept, broke("b"), failed(NO_PAY)], steps) == both
    # What waits for a confirmation beside a tool that fails has not run, though it will.
    assert done_in([*calling, broke("a"), failed(NO_PAY)], steps) == {("tool pay", "e-1/a"): 1}


def test_a_tool_whose_failure_was_dealt_with_is_done() -> None:
    """As long as the agent does not fail by it: then a resume tries it again."""
    runs = [tool(number, "e-1/a", activity=f"run/{number}", error="RuntimeError") for number in (1, 2)]
    steps = [*runs, tool(3, "e-1/b", activity="run/3")]
    below = EventLogged(event=called("a"), run="boss/clerk")
    beside = EventLogged(event=called("b").model_copy(update={"author": "other"}), run="boss/other")
    caught = FailureCaught(invocation_id="e-1", agent="boss", failures=(NO_PAY,), sub_run="boss/clerk")
    entries: list[Entry] = [plan(), below, beside, broke("a"), caught]
    assert done_in(entries, steps) == {PAY: 1}
    assert done_in([*entries, GAVE_UP, failed(NO_PRICE)], steps)[PAY] == 1
    assert done_in([*entries, GAVE_UP, failed(NO_PRICE), broke("a"), failed(NO_PRICE)], steps)[PAY] == 2
    assert done_in([*entries, failed(NO_PRICE), failed(NO_PRICE)], steps)[PAY] == 1
    # Nor if it fails by something else, and says so.
    met = FailureCaught(invocation_id="e-1", agent="boss", failures=(NO_PRICE,), name="price")
    other = [*entries, met, GAVE_UP.model_copy(update={"again": (1,)}), failed(NO_PRICE), failed(NO_PRICE)]
    assert done_in(other, steps)[PAY] == 1


def test_a_function_that_failed_is_done() -> None:
    steps = [Step(number, "code", "price", "w", f"run/{number}", 1, 1) for number in (1, 2)]
    met = FailureCaught(invocation_id="e-1", agent="boss", failures=(NO_PRICE,), name="price")
    assert done_in([plan(), met], steps) == {PRICE: 1}
    assert done_in([plan(), failed(NO_PRICE)], steps) == {PRICE: 1}
    # The agent fails by the failure that it had dealt with: the function has not run again.
    assert done_in([plan(), met, GAVE_UP, failed(NO_PRICE)], steps) == {PRICE: 1}
    assert done_in([plan(), met, GAVE_UP, failed(NO_PRICE), failed(NO_PRICE)], steps) == {PRICE: 2}
