"""`Gemini` over real HTTP against a local server: answers, streams and endpoints."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest
from google.genai import types

from perdure.errors import ModelError
from perdure.journal.events import Event, user_content
from perdure.models.gemini import Gemini
from perdure.prove.conversations import gemini_refusals
from perdure.steps.prompt import build_contents, without_session_ids
from tests.models.gemini_calls import KEY, failure, request, responses
from tests.models.gemini_server import GeminiServer, Reply, answer

SIGNATURE = bytes(range(256))
"""Every byte: in base64 it holds `+` and `/`, or `-` and `_`."""


# Answers.


async def test_a_request_carries_instruction_tools_settings_and_key() -> None:
    declaration = types.FunctionDeclaration(name="look_up", description="Looks up.")
    async with GeminiServer(answer({"text": "hello"})) as server:
        [response] = await responses(
            server,
            request(
                system_instruction="Be brief.",
                temperature=0.5,
                tools=[types.Tool(function_declarations=[declaration])],
            ),
        )
        [sent] = server.requests
    assert response.content == types.Content(role="model", parts=[types.Part(text="hello")])
    assert response.finish_reason == types.FinishReason.STOP
    assert response.model_version == "gemini-test-001"
    assert sent.path.endswith("/models/gemini-2.5-flash:generateContent")
    assert sent.headers["x-goog-api-key"] == KEY
    assert sent.body["contents"] == [{"role": "user", "parts": [{"text": "hi"}]}]
    assert sent.body["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert sent.body["generationConfig"] == {"temperature": 0.5}
    assert sent.body["tools"] == [{"functionDeclarations": [{"name": "look_up", "description": "Looks up."}]}]


async def test_opaque_fields_survive_from_the_response_over_the_log_to_the_next_request() -> None:
    """Thought signatures byte for byte, and everything else that google-genai knows of a part."""
    parts: list[dict[str, Any]] = [
        {"text": "hm", "thought": True, "thoughtSignature": base64.b64encode(SIGNATURE).decode()},
        {
            "functionCall": {"id": "call_7", "name": "look_up", "args": {"city": "Zürich", "n": 1.5, "none": None}},
            "thoughtSignature": base64.b64encode(SIGNATURE[::-1]).decode(),
        },
        {"functionCall": {"name": "look_up", "args": {}}},
        {"toolCall": {"id": "t1", "toolType": "GOOGLE_SEARCH_WEB", "args": {"q": "x"}}},
        {"inlineData": {"mimeType": "image/png", "data": base64.b64encode(SIGNATURE).decode()}},
        {"text": "", "thoughtSignature": base64.b64encode(b"\xfb\xff\xfe").decode()},
    ]
    async with GeminiServer(answer(*parts)) as server:
        [response] = await responses(server)
        event = Event(author="clerk", content=response.content)
        logged = Event.model_validate_json(event.to_json())
        calls = event.get_function_calls()
        answers = [types.Part(function_response=types.FunctionResponse(id=call.id, name=call.name)) for call in calls]
        log = [
            Event(author="user", content=user_content("hi")),
            logged,
            Event(author="clerk", content=types.Content(role="user", parts=answers)),
        ]
        contents = build_contents(log, agent="clerk", branch=None, include_contents="default")
        await responses(server, request(*without_session_ids(contents), user_content("go on")))
        sent: list[dict[str, Any]] = server.requests[1].body["contents"][1]["parts"]
    assert logged == event
    assert [without_bytes(part) for part in sent] == [without_bytes(part) for part in parts]
    assert [part_bytes(part) for part in sent] == [part_bytes(part) for part in parts]
    assert part_bytes(sent[0]) == SIGNATURE


def without_bytes(part: dict[str, Any]) -> dict[str, Any]:
    # google-genai writes some nested names in snake case; the API takes both.
    camel: dict[str, Any] = json.loads(
        json.dumps(part).replace("mime_type", "mimeType").replace("tool_type", "toolType")
    )
    camel.pop("thoughtSignature", None)
    camel.get("inlineData", {}).pop("data", None)
    return camel


def part_bytes(part: dict[str, Any]) -> bytes:
    """Return a part's bytes; both alphabets of base64 are JSON's form of them."""
    encoded: str = part.get("thoughtSignature") or part.get("inlineData", {}).get("data", "")
    return base64.b64decode(encoded.replace("-", "+").replace("_", "/"))


async def test_a_part_field_that_google_genai_does_not_know_is_dropped() -> None:
    """A limit of google-genai: its `Part` refuses unknown fields, so it takes them out of what it reads."""
    async with GeminiServer(answer({"text": "a", "fieldOfTomorrow": {"x": 1}})) as server:
        [response] = await responses(server)
    assert response.content == types.Content(role="model", parts=[types.Part(text="a")])


async def test_usage_metadata_arrives() -> None:
    usage = {"promptTokenCount": 7, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "totalTokenCount": 12}
    async with GeminiServer(answer({"text": "a"}, usageMetadata=usage)) as server:
        [response] = await responses(server)
    assert response.usage_metadata is not None
    assert response.usage_metadata.model_dump(by_alias=True, exclude_none=True) == usage


async def test_a_blocked_prompt_is_an_answer_with_an_error_code() -> None:
    body = {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "modelVersion": "v"}
    async with GeminiServer(body) as server:
        [response] = await responses(server)
    assert response.error_code == "PROHIBITED_CONTENT"
    assert response.content is None
    assert response.model_version == "v"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("vertexai", [False, True])
async def test_an_answer_withheld_for_safety_has_an_error_code(
    stream: bool, vertexai: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its message as well on Vertex AI; for the Gemini API google-genai 3.4 leaves it out."""
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", str(vertexai))
    body = {"candidates": [{"finishReason": "SAFETY", "finishMessage": "Unsafe."}]}
    async with GeminiServer(Reply([body] if stream else body)) as server:
        [response] = await responses(server, stream=stream)
    assert response.error_code == "SAFETY"
    assert response.finish_reason == types.FinishReason.SAFETY
    assert response.content is None
    if vertexai:
        assert response.error_message == "Unsafe."


OWN = types.Content(role="model", parts=[types.Part(text="I was done.")])
CALL = types.Content(role="model", parts=[types.Part(function_call=types.FunctionCall(name="look_up"))])
RESPONSE = types.Content(role="user", parts=[types.Part(function_response=types.FunctionResponse(name="look_up"))])
HI = user_content("hi")


@pytest.mark.parametrize(
    ("contents", "roles"),
    [
        ([], "u"),
        ([OWN], "umu"),
        ([HI, OWN], "umu"),
        ([HI, OWN, OWN], "umumu"),
        ([HI, OWN, CALL, RESPONSE], "umumu"),
        ([HI, HI, CALL, RESPONSE, OWN, HI], "uumumu"),
    ],
)
async def test_each_turn_of_the_model_stands_between_words_of_the_user(
    contents: list[types.Content], roles: str
) -> None:
    """Gemini takes no other conversation; where an agent was called again with nothing new it was asked to go on."""
    asked = request().model_copy(update={"contents": contents})
    async with GeminiServer(answer({"text": "a"})) as server:
        await responses(server, asked)
        sent = [types.Content.model_validate(content) for content in server.requests[0].body["contents"]]
    assert "".join((content.role or "")[0] for content in sent) == roles
    assert gemini_refusals(sent) == []
    assert [content for content in sent if "Go on" not in str(content)] == contents


# Streams.


async def test_a_stream_ends_with_the_whole_answer() -> None:
    """Its last response is what the model would have answered without streaming, signatures untouched."""
    signature = base64.b64encode(SIGNATURE).decode()
    chunks = [
        answer({"text": "Let me ", "thought": True}, finish_reason=None),
        answer({"text": "think", "thought": True}, finish_reason=None),
        answer({"text": ""}, {"text": "Hel"}, finish_reason=None, usageMetadata={"totalTokenCount": 1}),
        answer({"text": "lo"}, {"functionCall": {"name": "f"}, "thoughtSignature": signature}, finish_reason=None),
        answer({"text": "", "thoughtSignature": signature}, usageMetadata={"totalTokenCount": 9}),
    ]
    async with GeminiServer(Reply(chunks)) as server:
        *partial, whole = await responses(server, stream=True)
        assert ":streamGenerateContent" in server.requests[0].path
    assert len(partial) == len(chunks)
    assert all(response.partial for response in partial)
    assert not whole.partial
    assert whole.content is not None
    assert whole.content.parts == [
        types.Part(text="Let me think", thought=True),
        types.Part(text="Hello"),
        types.Part(function_call=types.FunctionCall(name="f"), thought_signature=SIGNATURE),
        types.Part(text="", thought_signature=SIGNATURE),
    ]
    assert whole.finish_reason == types.FinishReason.STOP
    assert whole.usage_metadata is not None
    assert whole.usage_metadata.total_token_count == 9


TOLD = base64.b64encode(SIGNATURE).decode()
USAGE = {
    "promptTokenCount": 7,
    "candidatesTokenCount": 12,
    "thoughtsTokenCount": 30,
    "totalTokenCount": 49,
    "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 7}],
}
GROUNDING: dict[str, Any] = {
    "groundingMetadata": {"webSearchQueries": ["oslo"], "groundingChunks": [{"web": {"uri": "https://oslo.example"}}]},
    "citationMetadata": {"citationSources": [{"startIndex": 0, "endIndex": 4, "uri": "https://oslo.example"}]},
    "avgLogprobs": -0.25,
}


def call(name: str, **part: Any) -> dict[str, Any]:
    return {"functionCall": {"id": f"id-{name}", "name": name, "args": {"n": 1.5, "none": None, "s": "ü"}}, **part}


@pytest.mark.parametrize(
    ("whole", "pieces"),
    [
        ([{"text": "Oslo is fine."}], [[{"text": "Oslo"}], [{"text": " is "}], [{"text": "fine."}]]),
        (
            [{"text": "Hm, Oslo.", "thought": True}, {"text": "Oslo."}],
            [
                [{"text": "Hm, ", "thought": True}],
                [{"text": "Oslo.", "thought": True}, {"text": "Os"}],
                [{"text": "lo."}],
            ],
        ),
        (
            # Gemini 3: the first of several calls has the signature.
            [call("one", thoughtSignature=TOLD), call("two")],
            [[call("one", thoughtSignature=TOLD)], [call("two")]],
        ),
        (
            [{"text": "I look."}, call("one", thoughtSignature=TOLD)],
            [[{"text": "I "}], [{"text": "look."}], [call("one", thoughtSignature=TOLD)], []],
        ),
        (
            # Gemini 3: a text's signature comes in an empty part at its end.
            [{"text": "Oslo."}, {"text": "", "thoughtSignature": TOLD}],
            [[{"text": "Os"}], [{"text": "lo."}], [{"text": "", "thoughtSignature": TOLD}]],
        ),
        (
            [{"executableCode": {"code": "1+1", "language": "PYTHON"}}, {"text": "It is 2."}],
            [[{"executableCode": {"code": "1+1", "language": "PYTHON"}}], [{"text": "It is"}], [{"text": " 2."}]],
        ),
    ],
    ids=["text", "thoughts", "calls", "text and call", "signature", "code"],
)
async def test_a_stream_ends_with_the_very_answer_that_comes_without_streaming(
    whole: list[dict[str, Any]], pieces: list[list[dict[str, Any]]]
) -> None:
    """Parts, signatures, calls, usage, grounding, citations: field by field."""
    one = answer(*whole, usageMetadata=USAGE)
    one["candidates"][0] |= GROUNDING
    chunks = [answer(*parts, finish_reason=None, usageMetadata={"promptTokenCount": 7}) for parts in pieces[:-1]]
    last = answer(*pieces[-1], usageMetadata=USAGE)
    last["candidates"][0] |= GROUNDING
    async with GeminiServer(Reply(one), Reply([*chunks, last])) as server:
        [expected] = await responses(server)
        *partial, streamed = await responses(server, stream=True)
        assert ["alt=sse" in sent.path for sent in server.requests] == [False, True]
    assert partial
    assert streamed == expected
    assert streamed.model_dump_json() == expected.model_dump_json()


async def test_a_stream_of_a_blocked_prompt_has_the_error_code() -> None:
    async with GeminiServer(Reply([{"promptFeedback": {"blockReason": "SAFETY"}}])) as server:
        [response] = await responses(server, stream=True)
    assert response.error_code == "SAFETY"


@pytest.mark.parametrize(
    "reply",
    [
        Reply([answer({"text": "Hel"}, finish_reason=None)], cut="within"),
        Reply([answer({"text": "Hel"}, finish_reason=None)]),
        Reply([]),
    ],
    ids=["connection lost", "no finish reason", "nothing"],
)
async def test_a_stream_that_ends_early_is_tried_again(reply: Reply) -> None:
    assert (await failure(reply, stream=True)).retryable


async def test_an_error_within_a_stream_counts_as_its_status_says() -> None:
    chunks = [
        answer({"text": "Hel"}, finish_reason=None),
        {"error": {"code": 503, "message": "Overloaded.", "status": "UNAVAILABLE"}},
    ]
    error = await failure(Reply(chunks), stream=True)
    assert error.retryable
    assert "Overloaded." in str(error)


async def test_calls_that_arrive_argument_by_argument_are_refused() -> None:
    call = {"functionCall": {"name": "f", "willContinue": True}}
    error = await failure(Reply([answer(call, finish_reason=None)]), stream=True)
    assert not error.retryable
    assert "stream_function_call_arguments" in str(error)


# Credentials and endpoints.


async def test_a_missing_key_is_final_and_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY")
    with pytest.raises(ModelError, match=r"GOOGLE_API_KEY.*GOOGLE_GENAI_USE_VERTEXAI") as caught:
        await responses("http://127.0.0.1:1")
    assert not caught.value.retryable


async def test_credentials_that_are_not_there_are_final(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("GOOGLE_API_KEY")
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ModelError, match=r"none\.json.*GOOGLE_CLOUD_PROJECT") as caught:
        await anext(Gemini("gemini-2.5-flash").generate_content_async(request()))
    assert not caught.value.retryable


async def test_the_endpoint_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with GeminiServer(answer({"text": "a"})) as server:
        monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", server.url)
        model = Gemini("gemini-2.5-flash")
        assert len([response async for response in model.generate_content_async(request())]) == 1
        await model.aclose()
        assert len(server.requests) == 1


async def test_vertex_ai_is_chosen_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", "true")
    async with GeminiServer(answer({"text": "a"})) as server:
        await responses(server)
        [sent] = server.requests
    assert sent.path == "/v1beta1/publishers/google/models/gemini-2.5-flash:generateContent"


@pytest.mark.parametrize(("on_vertex", "names"), [("true", ["a.png", "b.pdf"]), ("false", [])])
async def test_names_of_files_are_sent_where_they_are_known(
    on_vertex: str, names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Gemini API refuses a request with a field that it does not know, as google.adk's own page sends one."""
    monkeypatch.setenv("GOOGLE_GENAI_USE_VERTEXAI", on_vertex)
    picture = types.Blob(data=b"abc", mime_type="image/png", display_name="a.png")
    paper = types.FileData(file_uri="gs://b/b.pdf", mime_type="application/pdf", display_name="b.pdf")
    said = types.Content(role="user", parts=[types.Part(inline_data=picture), types.Part(file_data=paper)])
    async with GeminiServer(answer({"text": "a"})) as server:
        await responses(server, request(said))
        [sent] = server.requests
    [content] = sent.body["contents"]
    data = [value for part in content["parts"] for value in part.values()]
    assert [one.get("displayName", one.get("display_name")) for one in data] == (names or [None, None])
    # What stands in the log keeps its name.
    assert picture.display_name == "a.png"


async def test_one_model_serves_calls_at_once_and_several_loops() -> None:
    async with GeminiServer(Reply(answer({"text": "a"}), delay=0.05)) as server:
        model = Gemini("gemini-2.5-flash", base_url=server.url)

        async def call() -> int:
            return len([response async for response in model.generate_content_async(request())])

        assert await asyncio.gather(*(call() for _ in range(4))) == [1] * 4

        async def elsewhere() -> int:
            try:
                return await call()
            finally:
                await model.aclose()

        assert await asyncio.to_thread(asyncio.run, elsewhere()) == 1
        await model.aclose()
