"""Gemini, through google-genai: the Gemini API and Vertex AI.

google-genai's own retries are off. Temporal retries, so that a retry survives a worker and shows in the UI.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any
from weakref import WeakKeyDictionary

from google.genai import Client, types

from perdure.errors import ModelError
from perdure.models.base import BaseLlm, LlmRequest, LlmResponse
from perdure.models.gemini_errors import setup_error, to_model_error
from perdure.models.gemini_signatures import check_signatures

_ONE_ATTEMPT = types.HttpRetryOptions(attempts=1)
_GO_ON = types.Content(
    role="user",
    parts=[types.Part(text="Go on with the task as the system instruction says, or sum up if it is done.")],
)
"""Gemini answers a user: it takes no empty conversation, returns nothing after a turn of its own, and refuses calls
that stand behind one."""


class Gemini(BaseLlm):
    """A Gemini model. ADK: `models/google_llm.py`.

    Key, project and endpoint come from the environment variables that google-genai itself reads, in the worker:
    `GOOGLE_API_KEY` or `GEMINI_API_KEY`; `GOOGLE_GENAI_USE_VERTEXAI` with `GOOGLE_CLOUD_PROJECT` and
    `GOOGLE_CLOUD_LOCATION`; `GOOGLE_GEMINI_BASE_URL` and `GOOGLE_VERTEX_BASE_URL`.
    """

    def __init__(self, model: str, *, base_url: str | None = None) -> None:
        """Name a model; nothing is connected before the first call.

        Args:
            model: The model's name, such as `gemini-2.5-flash`, or on Vertex AI its resource name `projects/…`.
            base_url: Endpoint to use instead of Google's. Default: the environment's, or Google's.
        """
        super().__init__(model)
        self.base_url = base_url
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = WeakKeyDictionary()
        self._lock = threading.Lock()

    @property
    def provider(self) -> str:
        """Google, by the Gemini API or Vertex AI: which, is decided with the first call only."""
        return "gcp.gen_ai"

    @property
    def pairs_by_id(self) -> bool:
        """No: it gives no ids, and pairs by order."""
        return False

    @property
    def output_schema_and_tools(self) -> bool:
        """On Vertex AI. As in ADK."""
        on_vertex = os.environ.get("GOOGLE_GENAI_USE_VERTEXAI", "").lower() in ("true", "1")
        return on_vertex or self.model.startswith("projects/")

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yield the model's answer: with `stream` its pieces as they arrive, then the whole.

        Raises:
            ModelError: Retryable for HTTP 408, 429 and 5xx, lost connections and bodies that are no JSON; final for
                any other answer of the server, where no credentials are set, and where a function call has lost the
                thought signature that Gemini 3 asks for.
        """
        check_signatures(self.model, llm_request.contents)
        # Making a client reads certificates and, on Vertex AI, credentials: too slow for the worker's loop.
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop) or await asyncio.to_thread(self._connect, loop)
        contents = _between_user_turns(llm_request.contents)
        if not client.vertexai:
            contents = [_without_names(content) for content in contents]
        call = self._stream if stream else self._generate
        async with aclosing(call(client, contents, _without_retries(llm_request.config))) as responses:
            async for response in responses:
                yield response

    async def aclose(self) -> None:
        """Close the connections of the running event loop. The next call opens new ones."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aio.aclose()
            client.close()

    def _connect(self, loop: asyncio.AbstractEventLoop) -> Client:
        """Return the client of an event loop: before google-genai 3, a client's connections belong to one loop."""
        with self._lock:
            client = self._clients.get(loop)
            if client is None:
                options = types.HttpOptions(base_url=self.base_url, retry_options=_ONE_ATTEMPT)
                vertexai = True if self.model.startswith("projects/") else None
                try:
                    client = self._clients[loop] = Client(vertexai=vertexai, http_options=options)
                except Exception as error:
                    raise setup_error(self.model, error) from None
            return client

    async def _generate(
        self, client: Client, contents: list[types.Content], config: types.GenerateContentConfig
    ) -> AsyncGenerator[LlmResponse, None]:
        models: Any = client.aio.models  # its contents have a type that pyright does not know
        try:
            response: types.GenerateContentResponse = await models.generate_content(
                model=self.model, contents=contents, config=config
            )
        except Exception as error:
            # Without the cause: its text may hold a prompt, an answer or a header, and failures are logged.
            raise to_model_error(self.model, error) from None
        if not _given(response, "candidates", "prompt_feedback", "usage_metadata", "model_version"):
            raise ModelError(f"model {self.model!r} answered with a body that is no response", retryable=True)
        yield LlmResponse.create(response)

    async def _stream(
        self, client: Client, contents: list[types.Content], config: types.GenerateContentConfig
    ) -> AsyncGenerator[LlmResponse, None]:
        answer = _StreamedAnswer()
        models: Any = client.aio.models
        try:
            pieces: AsyncGenerator[types.GenerateContentResponse, None] = await models.generate_content_stream(
                model=self.model, contents=contents, config=config
            )
            async with aclosing(pieces):
                async for piece in _checked(pieces):
                    answer.add(piece)
                    response = LlmResponse.create(piece)
                    if response.content is not None and response.content.parts:
                        yield response.model_copy(update={"partial": True})
        except Exception as error:
            raise to_model_error(self.model, error) from None
        if not answer.is_complete:
            raise ModelError(f"model {self.model!r}: the stream ended before the answer did", retryable=True)
        yield LlmResponse.create(answer.whole())


def _between_user_turns(contents: Sequence[types.Content]) -> list[types.Content]:
    """Return contents with the user's word before each turn of the model, as it stood there when that was asked for."""
    asked: list[types.Content] = []
    for content in contents:
        if content.role != "user" and (not asked or asked[-1].role != "user"):
            asked.append(_GO_ON)
        asked.append(content)
    return asked if asked and asked[-1].role == "user" else [*asked, _GO_ON]


def _without_names(content: types.Content) -> types.Content:
    """Return a content whose files have no names: the Gemini API knows none, and refuses what it does not know."""
    if not any(named.display_name for part in content.parts or [] for named in _data_of(part)):
        return content
    content = content.model_copy(deep=True)
    for part in content.parts or []:
        for named in _data_of(part):
            named.display_name = None
    return content


def _data_of(part: types.Part) -> list[types.Blob | types.FileData]:
    return [data for data in (part.inline_data, part.file_data) if data is not None]


def _without_retries(config: types.GenerateContentConfig) -> types.GenerateContentConfig:
    """Return a config under which google-genai makes one HTTP request and calls no functions itself."""
    update: dict[str, Any] = {"automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True)}
    if config.http_options is not None:
        update["http_options"] = config.http_options.model_copy(update={"retry_options": _ONE_ATTEMPT})
    return config.model_copy(update=update)


async def _checked(
    pieces: AsyncIterator[types.GenerateContentResponse],
) -> AsyncGenerator[types.GenerateContentResponse, None]:
    """Pass the pieces of a stream on, and refuse function calls that arrive argument by argument."""
    async for piece in pieces:
        for part in _parts(piece):
            call = part.function_call
            if call is not None and (call.partial_args or call.will_continue):
                raise ValueError(
                    "function calls that arrive in pieces are not supported; leave stream_function_call_arguments "
                    "out of the agent's generate_content_config"
                )
        yield piece


class _StreamedAnswer:
    """The pieces of a streamed answer, put together into what the model would have answered without streaming."""

    def __init__(self) -> None:
        self._parts: list[types.Part] = []
        self._role: str | None = None
        self._candidate: dict[str, Any] = {}
        self._response: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        """Whether the model has said why it stopped, or why it said nothing."""
        return "finish_reason" in self._candidate or "prompt_feedback" in self._response

    def add(self, piece: types.GenerateContentResponse) -> None:
        """Add a piece: parts are appended, of everything else the newest value counts."""
        self._response |= _given(piece, "usage_metadata", "model_version", "prompt_feedback")
        if not piece.candidates:
            return
        candidate = piece.candidates[0]
        self._candidate |= _given(
            candidate,
            "finish_reason",
            "finish_message",
            "grounding_metadata",
            "citation_metadata",
            "avg_logprobs",
            "logprobs_result",
        )
        if candidate.content is not None:
            self._role = candidate.content.role or self._role
        for part in _parts(piece):
            self._add_part(part)

    def _add_part(self, part: types.Part) -> None:
        last = self._parts[-1] if self._parts else None
        # A part with a signature stays as it came: the signature counts for exactly this part.
        # https://ai.google.dev/gemini-api/docs/thought-signatures
        if _is_plain_text(part):
            if last is not None and _is_plain_text(last) and last.thought == part.thought:
                self._parts[-1] = last.model_copy(update={"text": f"{last.text}{part.text}"})
                return
            if not part.text:
                return
        self._parts.append(part)

    def whole(self) -> types.GenerateContentResponse:
        """Return the whole answer."""
        if not self._candidate and not self._parts:
            return types.GenerateContentResponse(**self._response)
        content = types.Content(role=self._role or "model", parts=self._parts)
        candidate = types.Candidate(content=content, **self._candidate)
        return types.GenerateContentResponse(candidates=[candidate], **self._response)


def _parts(response: types.GenerateContentResponse) -> list[types.Part]:
    candidate = response.candidates[0] if response.candidates else None
    return (candidate.content.parts or []) if candidate is not None and candidate.content is not None else []


def _is_plain_text(part: types.Part) -> bool:
    return {name for name, value in part if value is not None} <= {"text", "thought"} and part.text is not None


def _given(value: object, *names: str) -> dict[str, Any]:
    return {name: given for name in names if (given := getattr(value, name)) is not None}
