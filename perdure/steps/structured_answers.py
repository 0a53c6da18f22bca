"""Answers of agents that have an `output_schema`: asked for as JSON, checked, and written into the state."""

from __future__ import annotations

from perdure.compiler.registry import Registry
from perdure.errors import InvalidArguments
from perdure.journal.events import Event, EventActions
from perdure.journal.tool_output import ToolOutput
from perdure.journal.unusable_answers import INVALID_OUTPUT
from perdure.plan.nodes import SET_MODEL_RESPONSE, LlmNode
from perdure.plan.output_schemas import answer_in
from perdure.rules.tool_responses import error_output
from perdure.steps.base import Place, ToolCall, llm_node
from perdure.steps.user_code import CodeRunner


class AnswerCalls:
    """Checks the answers of one app's agents, by types that are code of the user's."""

    def __init__(self, registry: Registry, code: CodeRunner) -> None:
        self._registry = registry
        self._code = code

    async def checked(self, node: LlmNode, answer: Event) -> Event:
        """Return a model's answer with its value in the state, or as none, if it does not fit: then it is asked again.

        ADK: `LlmAgent.__maybe_save_output_to_state`.
        """
        text = answer.text or ""
        is_none = answer.error_code is not None or bool(answer.get_function_calls())
        if node.output_schema is None or is_none or not text.strip():
            return answer
        try:
            value = await self._code.run(self._registry.output(node).of_text, text)
        except InvalidArguments as error:
            told = f"its answer does not fit its output_schema: {error}"
            return answer.model_copy(update={"error_code": INVALID_OUTPUT, "error_message": told})
        delta = {} if node.output_key is None else {node.output_key: value}
        return answer.model_copy(update={"actions": EventActions(state_delta=delta)})

    async def run(self, at: Place, call: ToolCall) -> ToolOutput | None:
        """Return the output of a call of `set_model_response`; `None` if that is a tool of the user's own.

        ADK: `tools/set_model_response_tool.py`, `flows/llm_flows/prompt/_schema.py`.
        """
        node = llm_node(call.session.projection, at, None)[1] if call.session is not None else None
        if node is None or node.output_schema is None:
            return None
        output = self._registry.output(node)
        try:
            value = await self._code.run(output.of_json, answer_in(node.output_schema, call.args))
        except InvalidArguments as error:
            return error_output(
                f"Your answer does not fit: {error}\nCall {SET_MODEL_RESPONSE} again, with all fields that it needs,"
                " and values of the declared types."
            )
        await call.begin(False)
        return ToolOutput(result=value, actions=EventActions(set_model_response=value))
