"""What `/v1` tells of a session's tools and plans, what it explains, and sessions out of and into files."""

from __future__ import annotations

import json
from typing import Any

import pytest

from perdure.compiler.compile import compile_app
from tests.api.support import Api, call_of, texts

pytestmark = pytest.mark.server

Json = Any


async def get(api: Api, path: str, **query: Any) -> Json:
    answer = await api.http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


def base(api: Api, session: str) -> str:
    return f"/v1{api.path(session)}"


async def paid(api: Api) -> tuple[str, str, str]:
    """Return a session in which a payment waits to be approved, the id of the question, and the invocation's."""
    session = await api.create()
    call_id, invocation = call_of(await api.ran(session, "pay"))
    return session, call_id, invocation


async def test_the_ledger_is_read_by_page(api: Api) -> None:
    session, call_id, invocation = await paid(api)
    await api.http.post(f"{base(api, session)}/pending/{call_id}/answer", json={"approve": True})
    await api.user(session).settled(invocation)
    await api.ran(session, "pay")
    page = await get(api, f"{base(api, session)}/effects", limit=1)
    [effect] = page["effects"]
    assert (effect["tool"], effect["outcome"], effect["attempts"]) == ("pay", "done", 1)
    assert (page["next"], page["total"]) == (1, 2)
    assert effect["idempotencyKey"] == f"{invocation}/{effect['callId']}"
    assert effect["called"] <= effect["started"] <= effect["ended"]
    page = await get(api, f"{base(api, session)}/effects", since=1)
    assert ([effect["outcome"] for effect in page["effects"]], page["next"]) == (["awaits approval"], 2)


async def test_a_payment_is_approved_or_rejected(api: Api) -> None:
    """The reason is kept with the event, and the pending call says which tool it is about."""
    for approve, outcome in ((True, "done"), (False, "rejected")):
        session, call_id, invocation = await paid(api)
        [call] = (await get(api, f"{base(api, session)}/pending"))["calls"]
        assert (call["name"], call["tool"], call["id"]) == ("adk_request_confirmation", "pay", call_id)
        body = {"approve": approve, "reason": "as agreed", "payload": {"limit": 9}}
        answer = await api.http.post(f"{base(api, session)}/pending/{call_id}/answer", json=body)
        assert answer.status_code == 200, answer.text
        await api.user(session).settled(invocation)
        [effect] = (await get(api, f"{base(api, session)}/effects"))["effects"]
        assert effect["outcome"] == outcome
        events = (await api.session(session))["events"]
        [said] = [event for event in events if event["author"] == "user"][1:]
        assert said["content"]["parts"][0]["functionResponse"]["response"] == {
            "confirmed": approve,
            "payload": {"limit": 9},
        }
        who = said["customMetadata"]["perdure:answer"]
        assert (who["who"], who["why"], who["when"][:2]) == (None, "as agreed", "20")


WRONG: list[tuple[dict[str, Json], int]] = [
    ({"approve": True, "response": {}}, 422),
    ({"reason": "?"}, 422),
    ({"response": 1, "payload": 2}, 422),
    ({"approve": True, "why": "a", "reason": "b"}, 422),
    ({"response": {"confirmed": "perhaps"}}, 400),
    ({"approve": True, "metadata": {"perdure:answer": {"who": "boss"}}}, 400),
]


async def test_an_answer_of_the_wrong_form_is_refused(api: Api) -> None:
    session, call_id, _ = await paid(api)
    for body, status in WRONG:
        answer = await api.http.post(f"{base(api, session)}/pending/{call_id}/answer", json=body)
        assert answer.status_code == status, (body, answer.text)
    other = await api.create()
    asked, _ = call_of(await api.ran(other, "ask"))
    answer = await api.http.post(f"{base(api, other)}/pending/{asked}/answer", json={"approve": True})
    assert (answer.status_code, "not an approval" in answer.json()["detail"]) == (400, True)
    answer = await api.http.post(f"{base(api, other)}/pending/c/answer", json={"approve": True})
    assert answer.status_code == 404


async def test_a_plan_is_told_with_how_the_code_of_today_differs(api: Api) -> None:
    session, _, invocation = await paid(api)
    told = await get(api, f"{base(api, session)}/invocations/{invocation}/plan")
    plan = compile_app(api.definition)
    assert (told["digest"], told["appDigest"], told["changes"]) == (plan.digest, plan.digest, [])
    assert told["plan"]["root"]["name"] == "clerk"
    own = await get(api, f"/v1/apps/{api.app}/plan")
    assert (own["digest"], own["plan"]) == (plan.digest, told["plan"])
    assert (await api.http.get("/v1/apps/no_such/plan")).status_code == 404
    assert (await api.http.get(f"{base(api, session)}/invocations/e-no/plan")).status_code == 404


async def test_what_a_resume_would_do_is_explained(api: Api) -> None:
    session, call_id, invocation = await paid(api)
    told = await get(api, f"{base(api, session)}/explain")
    assert (told["status"], told["total"], told["closed"]) == ("waiting", 1, None)
    [one] = told["invocations"]
    [awaited] = one["awaits"]
    assert (awaited["call"]["id"], awaited["takes"]) == (call_id, "decision")
    assert (one["id"], one["resume"]["verdict"]) == (invocation, "nothing")
    await api.http.post(f"{base(api, session)}/invocations/{invocation}/stop")
    told = await get(api, f"{base(api, session)}/invocations/{invocation}/explain")
    [one] = told["invocations"]
    assert (one["resume"]["verdict"], one["resume"]["step"]["agent"]) == ("runs on", "clerk")
    assert (await api.http.get(f"{base(api, session)}/invocations/e-no/explain")).status_code == 404


async def test_a_session_goes_out_and_comes_in_again(api: Api) -> None:
    session, call_id, _ = await paid(api)
    answer = await api.http.get(f"{base(api, session)}/export", params={"journal": True})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-ndjson")
    assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{session}.jsonl"
    imports = f"/v1/apps/{api.app}/users/bea/imports"
    made = await api.http.post(imports, content=answer.content, params={"sessionId": "a copy"})
    assert made.status_code == 201, made.text
    assert made.headers["location"] == api.path("a%20copy", "bea")
    told = made.json()
    assert (told["userId"], told["sessionId"], told["eventCount"], told["replaced"]) == ("bea", "a copy", 4, None)
    assert [one["status"] for one in told["invocations"]] == ["waiting"]
    copy = await get(api, made.headers["location"])
    assert copy["events"] == (await api.session(session))["events"]
    assert (await api.http.post(imports, content=answer.content, params={"sessionId": "a copy"})).status_code == 409
    again = await api.http.post(imports, content=answer.content, params={"sessionId": "a copy", "replace": True})
    assert (again.status_code, again.json()["replaced"]) == (201, "a copy~replaced-1")
    answered = await api.http.post(f"/v1{made.headers['location']}/pending/{call_id}/answer", json={"approve": True})
    assert answered.status_code == 200, answered.text


async def test_a_file_makes_no_session_that_no_path_leads_to(api: Api) -> None:
    imports = f"/v1/apps/{api.app}/users/bea/imports"
    for session, status in (("", 400), ("ø" * 149, 400), ("ø" * 148, 201)):
        header = {"perdure": {"format": 1, "app": api.app, "user_id": "ann", "session_id": session}}
        made = await api.http.post(imports, content=f"\n{json.dumps(header)}\n")
        assert made.status_code == status, made.text
        if status == 201:
            assert (await api.http.get(made.headers["location"])).status_code == 200


async def test_an_export_without_the_journal_is_the_log(api: Api) -> None:
    session = await api.create()
    await api.ran(session, "hello")
    lines = (await api.http.get(f"{base(api, session)}/export")).text.splitlines()
    assert "perdure" in json.loads(lines[0])
    assert texts([json.loads(line) for line in lines[1:]]) == ["user: hello", "clerk: you said: hello"]
    assert (await api.http.get(f"{base(api, 'no-such')}/export")).status_code == 404


@pytest.mark.parametrize(
    "body", ["", "{", "[[]]\n", '{"perdure": {"format": 99}}\n', "\ud800".encode("utf-8", "surrogatepass")]
)
async def test_what_is_no_export_is_refused(api: Api, body: str | bytes) -> None:
    answer = await api.http.post(f"/v1/apps/{api.app}/users/bea/imports", content=body)
    assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("older_than", ["x", "-1", "nan", "inf", "1e300", "-PT1H"])
async def test_an_age_is_seconds_or_a_duration(api: Api, older_than: str) -> None:
    refused = await api.http.get("/v1/pending", params={"app": api.app, "olderThan": older_than})
    assert refused.status_code == 422, refused.text
    for age in ("3600", "0.5", "PT1H", "P2D"):
        page = await get(api, f"/v1/apps/{api.app}/pending", olderThan=age, userId="nobody")
        assert page == {"calls": [], "next": None, "unanswered": 0, "sessions": 0}


async def test_every_route_says_what_it_refuses(api: Api) -> None:
    paths = (await get(api, "/openapi.json"))["paths"]
    own = {path: methods for path, methods in paths.items() if path.startswith("/v1/")}
    assert len(own) >= 15
    for path, methods in own.items():
        for method, route in methods.items():
            assert {"400", "404", "503"} <= set(route["responses"]), path
            assert method == "get" or {"409", "413"} <= set(route["responses"]), path
