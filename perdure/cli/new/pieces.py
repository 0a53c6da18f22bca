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

TEST_HEAD = '''"""Runs the agents as they are, served by a worker, on a Temporal server that ends with the test."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from perdure import ConnectionConfig, Runner, connect, create_workers, load_app

pytest_plugins = ["perdure.prove.pytest_plugin"]  # has the server, by the fixture proof_address

'''

TEST_ANSWERS = """
def test_it_says_where_an_order_is(proof_address: str) -> None:
    async def talk() -> str:
        async with served(proof_address) as runner:
            session = await runner.create_session(user_id="ann")
            ann = {{"user_id": "ann", "session_id": session.id}}
            events = [event async for event in runner.run_async(**ann, new_message="{question}")]
        return events[-1].text or "".join(event.text or "" for event in events)

    assert "shipped" in asyncio.run(talk())
"""

TEST_WAITS = """
def test_it_waits_for_a_person_and_goes_on_with_the_answer(proof_address: str) -> None:
    async def talk() -> tuple[str, str]:
        async with served(proof_address) as runner:
            session = await runner.create_session(user_id="ann")
            ann = {{"user_id": "ann", "session_id": session.id}}
            async for _ in runner.run_async(**ann, new_message="{question}"):
                pass
            [(_, call)] = await runner.pending(**ann)
            result = await runner.respond(**ann, responses={{call.id: {{"approved": "by Bob"}}}})
            rest = runner.follow(**ann, invocation_id=result.invocation.id, since=result.offset)
            return call.name, "".join([event.text or "" async for event in rest])

    asked, told = asyncio.run(talk())
    assert asked == "approve_refund"
    assert "approved" in told
"""

TEST_SERVED = '''

@asynccontextmanager
async def served(address: str) -> AsyncGenerator[Runner, None]:
    """Serve the app while the block runs."""
    app = load_app(str(Path(__file__).parent))
    client = await connect(ConnectionConfig(address=address, namespace="default"))
    async with AsyncExitStack() as stack:
        for worker in create_workers(client, [app]):
            await stack.enter_async_context(worker)
        yield Runner(app.name, client)
'''

ENV = """# Copy this file to .env, and keep that out of version control.

# For Gemini; a key is at https://aistudio.google.com/apikey
GOOGLE_API_KEY=

# Where Temporal is, if not on this machine (`perdure dev` starts it here).
# TEMPORAL_ADDRESS=localhost:7233
"""

README_ENV = """Put a key into a copy of `.env.example`, and read it before you start the worker:

```sh
cp {name}/.env.example {name}/.env
set -a; . {name}/.env; set +a
```"""

README_HUMAN = """It ends with exit code 2: the agent waits for a person. Its last line is the command that answers; the
inbox at http://localhost:8000 takes the answer, too, and `perdure pending {name}` lists what waits.

"""

README = """# {name}

All commands are run in the folder above this one. They need Perdure with the extras {extras}, and pytest.

```sh
perdure dev {name}
```

serves the agents, with Temporal, an HTTP API and an inbox, until Ctrl-C. In another terminal:

```sh
perdure run {name} "{question}"
```

{answered}Kill `perdure dev` in the middle of it and start it again: it goes on where it was.

```sh
perdure sessions {name}
perdure check {name}
pytest {name}
```

list the sessions, say what of each agent and tool is durable, and run the test, on a Temporal server of its own.

{adk}## With Gemini

The agents think with `offline.py`, which needs no key and always says the same. In `agent.py`, change one line:

```python
MODEL = "gemini-2.5-flash"
```

{env}
"""
