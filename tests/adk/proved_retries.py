"""A graph whose node fails at first, or for good, for proofs that it can be cut."""

from __future__ import annotations

from google.adk import Context, Workflow
from google.adk.apps.app import App
from google.adk.workflow import RetryConfig, node

_MOST = 3


@node(retry_config=RetryConfig(max_attempts=_MOST, initial_delay=0.01, jitter=0.0))
def fetch(ctx: Context, node_input: str) -> str:
    if node_input == "never" or (node_input == "later" and ctx.attempt_count < _MOST):
        raise ConnectionError(node_input)
    return f"{node_input} after {ctx.attempt_count}"


def tell(node_input: str) -> str:
    return f"fetched {node_input}"


app = App(name="fetcher", root_agent=Workflow(name="fetcher", edges=[("START", fetch, tell)]))
