"""Tools: declared by google-genai's schema generation, called with the model's arguments."""

from __future__ import annotations

import enum
import json
import math
from collections.abc import AsyncGenerator, Callable
from datetime import date, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import pytest
from pydantic import BaseModel, Field
from temporalio.common import RetryPolicy

from perdure.agents.expiry import AnswerError, AnswerWith, OnExpiry
from perdure.agents.tools import FunctionTool, LongRunningFunctionTool, State, ToolContext, exit_loop, transfer_to_agent
from perdure.errors import DefinitionError, InvalidArguments
from perdure.journal.events import EventActions, ToolConfirmation
from perdure.plan.nodes import ToolOptions, ToolPlan

if TYPE_CHECKING:
    from decimal import Decimal


class Cabin(enum.Enum):
    ECONOMY = "economy"
    FIRST = "first"


class Address(BaseModel):
    city: str
    zip_code: str | None = None


class Traveller(BaseModel):
    name: str
    home: Address


def book(
    traveller: Traveller,
    day: date,
    seats: Annotated[int, Field(ge=1, description="How many.")] = 1,
    cabin: Cabin = Cabin.ECONOMY,
    class_of: Literal["a", "b"] | None = None,
    *,
    tool_context: ToolContext,
) -> dict[str, Any]:
    """Book a flight.

    All of it.
    """
    return {"name": traveller.name, "day": day, "cabin": cabin, "context": tool_context}


def anything(what: str, tool_context: str = "", **named: int) -> str:
    return f"{what} {tool_context} {named}"


# As users write it who annotate nothing.
anything.__annotations__ = {}


async def search(query: str, ctx: ToolContext | None = None) -> list[str]:
    """Search."""
    return [query, str(ctx)]


def context(state: dict[str, Any] | None = None, confirmation: ToolConfirmation | None = None) -> ToolContext:
    return ToolContext(
        agent_name="booker",
        invocation_id="e-1",
        app_name="travel",
        user_id="u",
        session_id="s",
        state=state or {},
        function_call_id="adk-1",
        idempotency_key="e-1/adk-1",
        tool_confirmation=confirmation,
    )


def schema(tool: FunctionTool) -> dict[str, Any]:
    return cast(dict[str, Any], tool.declaration.parameters_json_schema)


def test_a_function_is_declared_from_signature_and_docstring() -> None:
    tool = FunctionTool(book)
    assert tool.declaration.name == "book"
    assert tool.declaration.description == "Book a flight.\n\nAll of it."
    declared = schema(tool)
    assert list(declared["properties"]) == ["traveller", "day", "seats", "cabin", "class_of"]
    assert declared["required"] == ["traveller", "day"]
    assert declared["properties"]["seats"] == {
        "default": 1,
        "description": "How many.",
        "minimum": 1,
        "type": "integer",
    }
    assert declared["properties"]["day"] == {"format": "date", "type": "string"}
    assert declared["properties"]["cabin"]["default"] == "economy"
    assert declared["$defs"]["Address"]["required"] == ["city"]
    assert json.loads(json.dumps(declared)) == declared


def test_the_context_is_found_by_annotation_or_by_name() -> None:
    assert FunctionTool(book).signature.context == "tool_context"
    assert FunctionTool(search).signature.context == "ctx"
    assert FunctionTool(anything).signature.context == "tool_context"
    assert list(schema(FunctionTool(anything))["properties"]) == ["what"]
    assert schema(FunctionTool(anything))["required"] == ["what"]


def test_a_context_that_is_imported_for_type_checkers_only_is_found() -> None:
    def tool(a: int, where: ToolContext) -> int:
        return a

    tool.__annotations__["where"] = "NotThere.ToolContext"
    assert FunctionTool(tool).signature.context == "where"


def test_a_function_without_parameters_declares_none() -> None:
    def ping() -> str:
        return "pong"

    declaration = FunctionTool(ping).declaration
    assert (declaration.name, declaration.description, declaration.parameters_json_schema) == ("ping", "", None)


def test_methods_and_objects_that_can_be_called_are_tools() -> None:
    class Search:
        def __call__(self, query: str) -> str:
            """Search the shelf."""
            return query

        async def later(self, query: str) -> str:
            return query

    tool, method = FunctionTool(Search()), FunctionTool(Search().later)
    assert (tool.name, tool.description, tool.is_async) == ("Search", "Search the shelf.", False)
    assert (method.name, method.is_async) == ("later", True)
    assert tool.bind({"query": "x"}, context()) == {"query": "x"}


def test_sync_and_async_functions_are_told_apart() -> None:
    assert FunctionTool(search).is_async
    assert not FunctionTool(book).is_async
    assert FunctionTool(book).needs_context


def test_a_default_that_is_no_json_is_not_declared() -> None:
    declared = schema(FunctionTool(defaults))
    assert declared["properties"]["where"] == {}
    assert "required" not in declared


def defaults(where: Any = object, when: str | None = None) -> None: ...


def socketish(connection: Callable[[int], int]) -> None: ...


def unresolved(amount: Decimal) -> None: ...


def positional(a: int, /) -> None: ...


def streamed(a: int) -> Any:
    yield a


async def astreamed(a: int) -> AsyncGenerator[int, None]:
    yield a


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (socketish, r"tool 'socketish': parameter 'connection' has the type .*Callable.* cannot be declared"),
        (unresolved, r"tool 'unresolved': parameter 'amount' has an annotation 'Decimal' that cannot be resolved"),
        (positional, r"tool 'positional': parameter 'a' is positional-only"),
        (streamed, r"tool 'streamed' is a generator"),
        (astreamed, r"tool 'astreamed' is a generator"),
        (max, r"tool 'max' has no signature to declare .*write a function around it"),
    ],
)
def test_a_signature_that_cannot_be_declared_names_tool_and_parameter(function: Any, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        FunctionTool(function).plan()


def test_arguments_become_python_values_and_unknown_ones_are_dropped() -> None:
    ctx = context()
    args = {
        "traveller": {"name": "Ada", "home": {"city": "Paris"}},
        "day": "2026-07-01",
        "cabin": "first",
        "seats": 2.0,
        "mood": "good",
    }
    assert FunctionTool(book).bind(args, ctx) == {
        "traveller": Traveller(name="Ada", home=Address(city="Paris")),
        "day": date(2026, 7, 1),
        "cabin": Cabin.FIRST,
        "seats": 2,
        "class_of": None,
        "tool_context": ctx,
    }


def test_missing_arguments_are_a_result_for_the_model() -> None:
    with pytest.raises(InvalidArguments) as caught:
        FunctionTool(book).bind({"seats": 1}, context())
    error = caught.value.result["error"]
    assert error.startswith(
        "Invoking `book()` failed as the following mandatory input parameters are not present:\ntraveller\nday\n"
    )


def test_arguments_of_the_wrong_form_are_a_result_for_the_model() -> None:
    with pytest.raises(InvalidArguments) as caught:
        FunctionTool(book).bind({"traveller": {"name": "Ada", "home": {}}, "day": "soon", "seats": 0}, context())
    error = caught.value.result["error"]
    assert "traveller.home.city: Field required" in error
    assert "day: Input should be a valid date" in error
    assert "seats: Input should be greater than or equal to 1" in error


def test_a_predicate_gets_the_arguments_it_takes() -> None:
    def is_many(seats: int = 1) -> bool:
        return seats > 3

    def in_state(tool_context: ToolContext, **args: Any) -> bool:
        return bool(tool_context.state["careful"]) and args["day"] == date(2026, 7, 1)

    args = {"traveller": {"name": "Ada", "home": {"city": "Paris"}}, "day": "2026-07-01", "seats": 4}
    many = FunctionTool(book, require_confirmation=is_many)
    assert many.requires_confirmation(args, context())
    assert not many.requires_confirmation(args | {"seats": 3}, context())
    assert FunctionTool(book, require_confirmation=in_state).requires_confirmation(args, context({"careful": True}))
    assert FunctionTool(book, require_confirmation=True).requires_confirmation(args, context())
    assert not FunctionTool(book).requires_confirmation(args, context())


def test_a_predicate_with_a_context_makes_the_state_travel() -> None:
    def careful(tool_context: ToolContext) -> bool:
        return bool(tool_context.state)

    def ping(n: int) -> int:
        return n

    tool = FunctionTool(ping, require_confirmation=careful)
    assert tool.needs_context
    assert tool.bind({"n": 1}, context()) == {"n": 1}


def test_a_predicate_must_be_sync() -> None:
    async def predicate(query: str) -> bool:
        return bool(query)

    with pytest.raises(DefinitionError, match="tool 'search': require_confirmation must be a plain function"):
        FunctionTool(search, require_confirmation=predicate)  # pyright: ignore -- that is the point


@pytest.mark.parametrize(("given", "planned"), [(False, "never"), (True, "always"), (lambda: True, "ask")])
def test_the_plan_says_whether_a_call_is_confirmed(given: Any, planned: str) -> None:
    assert FunctionTool(search, require_confirmation=given).plan().confirmation == planned


def test_options_become_the_plans() -> None:
    tool = LongRunningFunctionTool(
        search,
        timeout=timedelta(hours=1),
        heartbeat_timeout=timedelta(seconds=2),
        retry=RetryPolicy(
            initial_interval=timedelta(seconds=3),
            backoff_coefficient=1.5,
            maximum_attempts=7,
            non_retryable_error_types=["KeyError"],
        ),
    )
    assert tool.options == ToolOptions(
        timeout=timedelta(hours=1),
        heartbeat_timeout=timedelta(seconds=2),
        max_attempts=7,
        initial_interval=timedelta(seconds=3),
        backoff=1.5,
        max_interval=timedelta(minutes=5),
        non_retryable=("KeyError",),
    )
    assert FunctionTool(search).options == ToolOptions()
    assert repr(tool) == "LongRunningFunctionTool(search)"


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": timedelta(0)},
        {"heartbeat_timeout": timedelta(seconds=-1)},
        {"retry": RetryPolicy(maximum_attempts=-1)},
        {"retry": RetryPolicy(backoff_coefficient=0.5)},
        {"retry": RetryPolicy(initial_interval=timedelta(0))},
        {"retry": RetryPolicy(initial_interval=timedelta(9), maximum_interval=timedelta(8))},
    ],
)
def test_options_that_temporal_would_refuse_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match="tool 'search'"):
        FunctionTool(search, **options)


def test_a_long_running_tool_tells_the_model_not_to_call_again() -> None:
    plan = LongRunningFunctionTool(search).plan()
    assert plan.kind == "long_running"
    assert (plan.declaration.description or "").startswith("Search.\n\nNOTE: ")
    assert "do not call it again" in (plan.declaration.description or "")


def test_the_built_in_tools_run_without_an_activity() -> None:
    exits, transfers = FunctionTool(exit_loop).plan(), FunctionTool(transfer_to_agent).plan()
    assert (exits.kind, exits.declaration.parameters_json_schema) == ("exit_loop", None)
    assert transfers.kind == "transfer"
    assert list(schema(FunctionTool(transfer_to_agent))["properties"]) == ["agent_name"]


def test_the_built_in_functions_set_actions_when_a_tool_calls_them() -> None:
    ctx = context()
    exit_loop(ctx)
    transfer_to_agent("helper", ctx)
    assert ctx.actions.to_event_actions() == EventActions(
        escalate=True, skip_summarization=True, transfer_to_agent="helper"
    )


def test_a_tool_plan_survives_json() -> None:
    plan = FunctionTool(book).plan()
    assert ToolPlan.model_validate_json(plan.model_dump_json(by_alias=True, exclude_none=True)) == plan


def test_state_writes_go_into_the_delta_and_are_read_back() -> None:
    values = {"list": [1], "user:name": "Ada"}
    ctx = context(values)
    ctx.state["n"] = 1
    ctx.state[State.TEMP_PREFIX + "x"] = 2
    ctx.state.update({"list": [1, 2]})
    assert ctx.state.setdefault("n", 5) == 1
    assert ctx.state.get("missing") is None
    assert ctx.state["user:name"] == "Ada"
    assert list(ctx.state) == ["list", "user:name", "n", "temp:x"]
    assert len(ctx.state) == 4
    assert ctx.state.has_delta()
    assert ctx.state.to_dict() == {"list": [1, 2], "user:name": "Ada", "n": 1, "temp:x": 2}
    assert ctx.actions.to_event_actions().state_delta == {"n": 1, "temp:x": 2, "list": [1, 2]}
    assert values == {"list": [1], "user:name": "Ada"}
    assert repr(ctx.state) == f"State({ctx.state.to_dict()!r})"


def test_a_change_inside_of_a_value_is_no_write() -> None:
    values = {"list": [1]}
    ctx = context(values)
    ctx.state["list"].append(2)
    assert ctx.state["list"] == [1, 2]
    assert values == {"list": [1]}
    assert not ctx.state.has_delta()


def test_a_state_key_cannot_be_deleted() -> None:
    ctx = context({"a": 1})
    with pytest.raises(TypeError, match=r"assign state\['a'\] = None"):
        del ctx.state["a"]


def test_the_delta_may_be_replaced_as_a_whole() -> None:
    ctx = context({"a": 1})
    ctx.actions.state_delta = {"a": 2}
    assert ctx.state["a"] == 2


def test_unknown_actions_are_refused() -> None:
    with pytest.raises(ValueError, match="escalte"):
        context().actions.escalte = True  # pyright: ignore[reportAttributeAccessIssue] -- that is the point


def test_a_tool_can_ask_for_confirmation_itself() -> None:
    ctx = context()
    ctx.request_confirmation(hint="Sure?", payload={"days": 0})
    asked = ctx.actions.to_event_actions().requested_tool_confirmations
    assert asked == {"adk-1": ToolConfirmation(hint="Sure?", payload={"days": 0})}


def test_a_context_says_which_call_it_serves() -> None:
    ctx = context(confirmation=ToolConfirmation(confirmed=True))
    assert (ctx.function_call_id, ctx.idempotency_key, ctx.agent_name) == ("adk-1", "e-1/adk-1", "booker")
    assert (ctx.app_name, ctx.user_id, ctx.session_id, ctx.invocation_id) == ("travel", "u", "s", "e-1")
    assert ctx.tool_confirmation is not None
    assert ctx.tool_confirmation.confirmed


def test_an_at_most_once_tool_has_one_attempt_and_alone_may_reconcile() -> None:
    def look_up(what: str, context: ToolContext) -> None:
        """Look up."""

    tool = FunctionTool(anything, at_most_once=True, reconcile=look_up)
    plan = tool.plan()
    assert (plan.at_most_once, plan.reconcile, plan.options.max_attempts) == (True, True, 1)
    assert plan.needs_context, "its reconcile function takes a context"
    assert FunctionTool(anything, at_most_once=True, retry=RetryPolicy(maximum_attempts=1)).options.max_attempts == 1
    for attempts in (0, 2):
        with pytest.raises(DefinitionError, match=f"'anything': at_most_once allows one attempt, .* has {attempts} "):
            FunctionTool(anything, at_most_once=True, retry=RetryPolicy(maximum_attempts=attempts))
    with pytest.raises(DefinitionError, match="'anything': reconcile is for a tool that runs at most once"):
        FunctionTool(anything, reconcile=look_up)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        ({"when": date(2026, 1, 2), 1: b"\xff"}, {"when": "2026-01-02", "1": "_w=="}),
        (math.nan, "NaN"),
        ([math.inf, {"a": -math.inf}], ["Infinity", {"a": "-Infinity"}]),
        (Address(city="Bern"), {"city": "Bern", "zip_code": None}),
    ],
)
def test_the_value_of_a_deadline_is_written_as_a_result_is(value: Any, plain: Any) -> None:
    """As it stands in a plan, so that no number of it becomes null on the way."""
    tool = LongRunningFunctionTool(search, expires_in=timedelta(days=1), on_expiry=AnswerWith(value))
    expiry = ToolPlan.model_validate_json(tool.plan().model_dump_json()).expiry
    assert expiry is not None
    assert expiry.answer == plain


@pytest.mark.parametrize(
    ("on_expiry", "message"),
    [
        (AnswerWith("\ud83d"), "the value of AnswerWith is no JSON: it has a text with half of a character"),
        (AnswerWith({"a": [object()]}), r"AnswerWith is no JSON: at \['a'\]\[0\] it is an object of type object"),
        (AnswerWith({1: 1, "1": 2}), "AnswerWith is no JSON: it has two keys that are '1' as texts"),
        (AnswerError("\ud83d"), "the value of AnswerError is no JSON"),
    ],
)
def test_a_deadline_whose_value_is_no_json_is_refused(on_expiry: OnExpiry, message: str) -> None:
    with pytest.raises(DefinitionError, match=f"tool 'search': .*{message}"):
        LongRunningFunctionTool(search, expires_in=timedelta(days=1), on_expiry=on_expiry)
