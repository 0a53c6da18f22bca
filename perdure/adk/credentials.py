"""Credentials in google.adk's steps: secrets leave what is logged and come back for the code that needs them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from google.adk.agents.callback_context import CallbackContext
from google.adk.auth.auth_credential import AuthCredential
from google.adk.auth.auth_tool import AuthConfig, AuthToolArguments
from google.adk.auth.credential_service.base_credential_service import BaseCredentialService
from google.adk.auth.credential_service.in_memory_credential_service import InMemoryCredentialService
from google.genai import types

from perdure.credentials.sealing import Vault
from perdure.credentials.store import CredentialStore, Owner
from perdure.errors import CredentialError
from perdure.journal.credential_questions import credential_requests
from perdure.journal.events import Event
from perdure.journal.projection import TEMP, Projection
from perdure.journal.secrets import holds_credentials
from perdure.journal.tool_output import ToolOutput
from perdure.messages.keys import SessionKey
from perdure.steps.base import StepOutput

_EMPTY = StepOutput()

_CLIENT = {"client_id", "client_secret", "redirect_uri", "code_verifier", "code_challenge_method"}
"""What of OAuth 2 belongs to the app. ADK 2 completes the same: `auth/_auth_resume.py`."""


class StepCredentials:
    """The place where an app's steps leave the secrets of credentials."""

    def __init__(self, store: CredentialStore | None, *, encrypted: bool) -> None:
        """Use a store.

        Args:
            store: Keeps them outside of histories. Default: histories hold them, if these are encrypted.
            encrypted: Whether histories are.
        """
        self._vault = Vault(store) if store is not None else None
        self._refuses = store is None and not encrypted
        with warnings.catch_warnings():
            # google.adk calls its credential services experimental, whoever uses them.
            warnings.simplefilter("ignore", UserWarning)
            self.service: BaseCredentialService = _StoredCredentials(store) if store else InMemoryCredentialService()

    async def step(self, key: SessionKey, output: StepOutput, agent: str) -> StepOutput:
        """Return what a step logs, without secrets.

        Raises:
            CredentialError: There are some, and no safe place for them.
        """
        if output == _EMPTY:
            return output
        state = await self._sealed(key, dict(output.state), f"agent {agent!r}: its code")
        events = tuple([await self._event(key, event, f"agent {agent!r}: {_who(event)}") for event in output.events])
        return replace(output, events=events, state=state)

    async def tool(self, key: SessionKey, output: ToolOutput, agent: str, tool: str) -> ToolOutput:
        """Return what a tool's step gives, without secrets.

        Raises:
            CredentialError: There are some, and no safe place for them.
        """
        who = f"agent {agent!r}: {tool}"
        if output.asks is not None:
            actions = (await self._event(key, Event(actions=output.asks.actions), who)).actions
            changes = {"state": await self._sealed(key, output.asks.state, who), "actions": actions}
            return output.model_copy(update={"asks": output.asks.model_copy(update=changes)})
        actions = (await self._event(key, Event(actions=output.actions), who)).actions
        state = await self._sealed(key, output.state, who)
        after = tuple([await self._event(key, event, who) for event in output.after])
        return output.model_copy(update={"actions": actions, "state": state, "after": after})

    async def _event(self, key: SessionKey, event: Event, who: str) -> Event:
        actions = event.actions
        asked = await self._sealed(key, actions.requested_auth_configs, who, asks=bool(actions.requested_auth_configs))
        delta = await self._sealed(key, actions.state_delta, who)
        if asked != actions.requested_auth_configs or delta != actions.state_delta:
            actions = actions.model_copy(update={"requested_auth_configs": asked, "state_delta": delta})
            event = event.model_copy(update={"actions": actions})
        requests = credential_requests([event])
        if not requests:
            return event
        parts = [await self._part(key, part, requests, who) for part in event.parts]
        content = event.content.model_copy(update={"parts": parts}) if event.content is not None else None
        return event.model_copy(update={"content": content})

    async def _part(
        self, key: SessionKey, part: types.Part, requests: Sequence[types.FunctionCall], who: str
    ) -> types.Part:
        call = part.function_call
        if call is None or call not in requests:
            return part
        args = await self._sealed(key, call.args or {}, who, asks=True)
        return part.model_copy(update={"function_call": call.model_copy(update={"args": args})})

    async def _sealed(self, key: SessionKey, value: Any, who: str, *, asks: bool = False) -> Any:
        if self._refuses and (asks or holds_credentials(value)):
            raise CredentialError(
                f"{who} {'asks the user for a credential' if asks else 'puts a credential into the state'}, whose"
                " secrets would stand readable in Temporal's history; encrypt histories (--encryption-keys), or say"
                " where secrets are kept instead (--credentials FOLDER): see docs/security.md"
            )
        return value if self._vault is None else await self._vault.seal(key, value)

    async def state(self, key: SessionKey, projection: Projection, invocation_id: str) -> dict[str, Any]:
        """Return the state as an invocation's code sees it: with secrets, and credentials a person gave as ADK's.

        Raises:
            CredentialError: A secret is not to be had.
        """
        state = await self._opened(key, projection.visible_state(invocation_id))
        for name in _given(projection):
            if isinstance(state.get(name), dict):
                state[name] = AuthCredential.model_validate(state[name])
        return state

    async def config(self, key: SessionKey, args: Mapping[str, Any], credential: Mapping[str, Any]) -> AuthConfig:
        """Return a question's auth config, completed by the credential that a person gave.

        What the credential leaves out of OAuth 2 is taken from the question: a person cannot know the client's secret.

        Args:
            key: The session.
            args: The question's arguments.
            credential: The credential.

        Raises:
            CredentialError: A secret is not to be had.
            ValueError: It is none.
        """
        config = AuthToolArguments.model_validate(await self._opened(key, dict(args))).auth_config
        given = AuthCredential.model_validate(await self._opened(key, dict(credential)))
        for known in (config.exchanged_auth_credential, config.raw_auth_credential):
            if given.oauth2 is not None and known is not None and known.oauth2 is not None:
                left_out = known.oauth2.model_dump(
                    include=_CLIENT, exclude=set(given.oauth2.model_fields_set), exclude_none=True
                )
                given.oauth2 = given.oauth2.model_copy(update=left_out)
        return config.model_copy(update={"exchanged_auth_credential": given})

    async def _opened(self, key: SessionKey, value: dict[str, Any]) -> dict[str, Any]:
        return value if self._vault is None else await self._vault.open(key, value)


def _given(projection: Projection) -> Iterable[str]:
    """Return the keys of the state under which ADK puts the credentials that were asked for."""
    for request in credential_requests(projection.events):
        config: Any = (request.args or {}).get("authConfig")
        key = config.get("credentialKey") if isinstance(config, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] -- JSON
        if key:
            yield f"{TEMP}{key}"


def _who(event: Event) -> str:
    """Return who asks for credentials by an event: the toolsets that its questions name, else its author's code."""
    names = [str((call.args or {}).get("functionCallId")) for call in credential_requests([event])]
    return ", ".join(names) or "its code"


class _StoredCredentials(BaseCredentialService):
    """ADK's credential service, over a store: what code saves is there in each session of the user."""

    def __init__(self, store: CredentialStore) -> None:
        self._store = store

    async def load_credential(
        self, auth_config: AuthConfig, callback_context: CallbackContext
    ) -> AuthCredential | None:
        """Return what was saved under the config's key."""
        found = await self._store.load(_owner_of(callback_context), _name(auth_config))
        return AuthCredential.model_validate_json(found) if found is not None else None

    async def save_credential(self, auth_config: AuthConfig, callback_context: CallbackContext) -> None:
        """Save the config's exchanged credential under its key."""
        credential = auth_config.exchanged_auth_credential
        if credential is not None:
            value = credential.model_dump_json(by_alias=True, exclude_none=True)
            await self._store.save(_owner_of(callback_context), _name(auth_config), value)


def _owner_of(context: CallbackContext) -> Owner:
    return Owner(context.session.app_name, context.session.user_id)


def _name(config: AuthConfig) -> str:
    return f"saved-{config.credential_key}"
