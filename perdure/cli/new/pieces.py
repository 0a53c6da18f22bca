"""The pieces that files of a new folder are made of."""

from __future__ import annotations

AGENT_HEAD = '''"""The agents of {name}: `perdure dev {name}` serves them."""

'''

MODEL_AND_TOOL = '''
from .offline import Offline

MODEL = None  # for Gemini, with GOOGLE_API_KEY set: MODEL = "gemini-2.5-flash"


def look_up_order(order: str) -> dict[str, str]:
    """Look up where an order is."""
    return {"order": order, "status": "shipped", "arrives": "on Tuesday"}
'''

APPROVE_REFUND = '''

def approve_refund(order: str, reason: str) -> dict[str, str]:
    """Ask a person to approve a refund."""
    return {"status": "pending"}  # a first value: the agent now waits for the person, for weeks if need be
'''

APPROVE_REFUND_ADK = '''

def approve_refund(order: str, reason: str) -> None:
    """Ask a person to approve a refund. The answer is the result, even if it takes weeks to come."""
'''

ORDERS = """orders = LlmAgent(
    name="orders",
    description="Knows all about orders.",
    model=MODEL
    or Offline(
        first={{"call": "look_up_order", "args": {{"order": "17"}}}},
        after={after},
    ),
    instruction="{instruction}",
    tools={tools},
)
"""

INSTRUCTION = "Look the order up that the customer asks about, and say where it is."

AFTER = """{"look_up_order": {"text": "I looked it up. {answer}."}}"""

HUMAN_INSTRUCTION = "Look the order up. Then have the refund approved, and tell the customer what was decided."

HUMAN_AFTER = """{
            "look_up_order": {"call": "approve_refund", "args": {"order": "17", "reason": "It is late."}},
            "approve_refund": {"text": "I have asked. {answer}."},
        }"""

DESK = """
desk = LlmAgent(
    name="desk",
    model=MODEL or Offline(first={"call": "transfer_to_agent", "args": {"agent_name": "orders"}}),
    instruction="You greet the customers of a shop. Hand over to the agent orders whoever asks about an order.",
    sub_agents=[orders],
)
"""

APP = """
app = App(name="{name}", root_agent={root}, resumability_config=ResumabilityConfig(is_resumable=True))
"""

_OFFLINE_ANSWER = """        step: Mapping[str, Any] = self.first
        answer: Mapping[str, Any] = {}
        for part in llm_request.contents[-1].parts or []:
            response = part.function_response
            if response is not None and response.name in self.after:
                step, answer = self.after[response.name], response.response or {}
        if "call" in step:
            part = types.Part(function_call=types.FunctionCall(name=step["call"], args=step["args"]))
        else:
            told = ", ".join(f"{key}: {value}" for key, value in answer.items())
            part = types.Part(text=step["text"].replace("{answer}", told))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))
"""

_OFFLINE_DOC = '''"""A stand-in for a model: the agents run without a key. Once agent.py names a model, it can go."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any

'''

_OFFLINE_SIGNATURE = '''    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer by what came last: a message, or the result of a tool."""
'''

OFFLINE = (
    _OFFLINE_DOC
    + '''from google.genai import types

from perdure import BaseLlm, LlmRequest, LlmResponse


class Offline(BaseLlm):
    """Says the same each time: first to a message, then after the result of each tool."""

    def __init__(self, first: Mapping[str, Any], after: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__("offline")
        self.first = first
        self.after = after or {}

'''
    + _OFFLINE_SIGNATURE
    + _OFFLINE_ANSWER
)

OFFLINE_ADK = (
    _OFFLINE_DOC
    + '''from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class Offline(BaseLlm):
    """Says the same each time: first to a message, then after the result of each tool."""

    model: str = "offline"
    first: dict[str, Any]
    after: dict[str, dict[str, Any]] = {}

'''
    + _OFFLINE_SIGNATURE
    + _OFFLINE_ANSWER
)

TEST_HEAD = '''"""The fixture `perdure` serves the agents on a Temporal server of its own; scripts stand for models."""

from pathlib import Path

from perdure.testing import Perdure, assert_calls, call, say

HERE = Path(__file__).parent
SCRIPTS = {{
{scripts}
}}

'''

SCRIPT_DESK = """    "desk": [call("transfer_to_agent", agent_name="orders")],
"""

SCRIPT_ORDERS = """    "orders": [call("look_up_order", order="17"), say("On Tuesday.")],"""

SCRIPT_ORDERS_HUMAN = """    "orders": [
        call("look_up_order", order="17"),
        call("approve_refund", order="17", reason="It is late."),
        say("You get it back."),
    ],"""

TEST_ANSWERS = """
async def test_it_says_where_an_order_is(perdure: Perdure) -> None:
    talk = await perdure.start(HERE, models=SCRIPTS)
    turn = await talk.send("{question}")
    assert_calls(turn, [("look_up_order", {{"order": "17"}})], agent="orders")
    assert "shipped" in talk.prompts("orders")[-1].text
    assert turn.text == "On Tuesday."
"""

TEST_WAITS = """
async def test_it_waits_for_a_person_and_goes_on_with_the_answer(perdure: Perdure) -> None:
    talk = await perdure.start(HERE, models=SCRIPTS)
    turn = await talk.send("{question}")
    assert_calls(turn, [("look_up_order", {{"order": "17"}}), "approve_refund"], agent="orders")
    assert turn.status == "waiting"
    await talk.restart_worker()  # as a deployment does, which may come meanwhile
    turn = await talk.respond({{"approve_refund": {{"approved": "by Bob"}}}})
    assert "by Bob" in talk.prompts("orders")[-1].text
    assert turn.text == "You get it back."
"""

ENV = """# Copy this file to .env, and keep that out of version control.

# For Gemini; a key is at https://aistudio.google.com/apikey
GOOGLE_API_KEY=
"""

README_HUMAN = """It ends with exit code 2: the agent waits for a person. Its last line is the command that answers; the
inbox at http://localhost:8000 takes the answer, too, and `perdure pending {name}` lists what waits.

"""

README = """# {name}

All commands are run in the folder above this one. They need Perdure with the extras {extras}.

```sh
perdure dev {name}
```

serves the agents, with Temporal, an HTTP API, an inbox and a chat, until Ctrl-C. In another terminal:

```sh
perdure run {name} "{question}"
```

{answered}Kill `perdure dev` in the middle of it and start it again: it goes on where it was.

```sh
perdure sessions {name}
perdure check {name}
pytest {name}
```

list the sessions, say what of each agent and tool is durable, and run the test, on a Temporal server of its own. There
the agents' models follow the scripts of `test_agent.py`, whatever `agent.py` names.

{adk}## With Gemini

The agents think with `offline.py`, which needs no key and always says the same. In `agent.py`, change one line:

```python
MODEL = "gemini-2.5-flash"
```

`.env` in this folder is read as the agents are loaded: copy `.env.example`, and put a key into it.
"""
