"""Checks every model request of a proof: what a provider would refuse is a fault of Perdure's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from google.genai import types

from perdure.agents.adk_app import AdkApp, AnyApp
from perdure.agents.agent_tool import walk_all
from perdure.agents.definitions import App, LlmAgent
from perdure.errors import DefinitionError
from perdure.models.base import BaseLlm, LlmRequest
from perdure.models.registry import LLMRegistry
from perdure.models.wrapped import WrappedModel
from perdure.prove.conversations import refusals
from perdure.prove.ledger import Ledger

_REFUSED = "refused"


class WatchedModel(WrappedModel):
    """A model that is asked through a check of its requests; what a provider would refuse goes into the ledger."""

    def __init__(self, inner: BaseLlm, ledger: Ledger) -> None:
        super().__init__(inner)
        self._ledger = ledger

    def look_at(self, llm_request: LlmRequest) -> None:
        """Check the request."""
        where = f"model call {llm_request.call_index + 1} of {llm_request.agent}"
        _note(self._ledger, where, refusals(llm_request.contents, by_id=self.pairs_by_id))


def watch_models(app: AnyApp, ledger: Ledger) -> None:
    """Have all requests of an app's models checked."""
    if isinstance(app, AdkApp):
        app.models(app).watch(lambda where, contents: _check(ledger, where, contents))
    if not isinstance(app, App):
        return
    agents = [agent for agent in walk_all(app.root_agent) if isinstance(agent, LlmAgent)]
    for agent, model in [(agent, agent.resolved_model()) for agent in agents]:
        try:
            agent.model = WatchedModel(model if isinstance(model, BaseLlm) else LLMRegistry.new_llm(model), ledger)
        except DefinitionError:
            # Its compilation says so, and where.
            continue


def _check(ledger: Ledger, where: str, contents: Sequence[types.Content]) -> None:
    """Check a request of google.adk's, which leaves ids out where the provider pairs without them."""
    has_ids = any(part.function_call and part.function_call.id for one in contents for part in one.parts or [])
    _note(ledger, where, refusals(contents, by_id=has_ids))


def _note(ledger: Ledger, where: str, problems: list[str]) -> None:
    if problems:
        ledger.note(**{_REFUSED: f"{where} would be refused by its provider: {'; '.join(problems)}"})


def refused_requests(folder: Path) -> list[str]:
    """Return what providers would have refused in the runs whose ledgers lie in a folder."""
    notes = (note for path in sorted(folder.glob("*.jsonl")) for note in Ledger(path).notes)
    return list(dict.fromkeys(str(note[_REFUSED]) for note in notes if _REFUSED in note))
