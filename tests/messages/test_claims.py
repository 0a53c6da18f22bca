"""Claims of at-most-once calls, without a server."""

from __future__ import annotations

import pytest

from perdure.journal.compact_json import payload_size
from perdure.messages.claims import Claim, ClaimInput, ClaimResult, Claims, ClaimsInput, claims_id


def ask(
    claims: Claims, key: str, run: str = "r1", known: tuple[str, ...] | None = None, **fields: str | bool
) -> ClaimResult:
    given = {"tool": "pay", "args": "x", "token": f"{run}/{key}", "key": key, "at": float(len(claims)), **fields}
    return claims.claim(ClaimInput(claim=Claim.model_validate(given), run_id=run, known=known))


def again(claims: Claims) -> Claims:
    """Return the claims as the next run of their workflow has them."""
    return Claims(ClaimsInput.model_validate_json(claims.hand_over().model_dump_json()))


@pytest.mark.parametrize("carried", [False, True])
def test_the_first_attempt_gets_the_claim_and_asks_as_often_as_it_likes(carried: bool) -> None:
    """An answer that got lost on its way is given again; another attempt is refused."""
    claims = Claims(ClaimsInput())
    assert ask(claims, "a").verdict == "first"
    claims = again(claims) if carried else claims
    assert ask(claims, "a").verdict == "first"
    assert ask(claims, "a", token="another") == ClaimResult(verdict="started", key="a", at=0.0)


def test_a_call_has_a_start_for_each_word_of_a_person() -> None:
    """An approval is one, and so is each answer that lets it run again."""
    claims = Claims(ClaimsInput())
    starts = ["", "approved", "approved/q/1", "approved/q/2"]
    assert [ask(claims, "a", start=start, token=start).verdict for start in starts] == ["first"] * 4
    assert [ask(claims, "a", start=start, token="b").verdict for start in starts] == ["started"] * 4


@pytest.mark.parametrize("carried", [False, True])
def test_a_run_that_lacks_a_start_is_told_of_it_once(carried: bool) -> None:
    """At the call that is most like it; a run that has the telling in its journal is not told again."""
    claims = Claims(ClaimsInput())
    for key, tool, args in (("a", "pay", "1"), ("b", "pay", "2"), ("c", "book", "1")):
        assert ask(claims, key, tool=tool, args=args).verdict == "first"
    assert ask(claims, "n", "r2").verdict == "unknown_run"
    assert ask(claims, "n", "r2", (), tool="look").verdict == "first"
    claims = again(claims) if carried else claims
    assert ask(claims, "o", "r2", args="2") == ClaimResult(verdict="lost", key="b", at=1.0)
    assert ask(claims, "o", "r2", args="2").key == "b"
    assert ask(claims, "p", "r2", args="3") == ClaimResult(verdict="lost", key="a", at=0.0)
    assert ask(claims, "q", "r2", args="3").verdict == "first"
    # What goes on from that run does not know `c` either; what goes on from the first knows none of the second's.
    claims = again(claims) if carried else claims
    assert ask(claims, "s", "r3", ("n", "o", "p", "q")).verdict == "first"
    assert ask(claims, "t", "r3", tool="book") == ClaimResult(verdict="lost", key="c", at=2.0)
    assert ask(claims, "u", "r4", ("a", "b", "c"), args="3") == ClaimResult(verdict="lost", key="q", at=6.0)


@pytest.mark.parametrize("start", ["", "approved", "approved/authorized"])
def test_who_approves_a_call_is_told_of_a_lost_start_and_who_repeats_it_was(start: str) -> None:
    """An approval is asked for each call; it says nothing of one that the log has lost."""
    claims = Claims(ClaimsInput())
    assert ask(claims, "a", start=start).verdict == "first"
    assert ask(claims, "b", "r2", (), start=start).verdict == "lost"
    assert ask(claims, "b", "r2", start=f"{start}/q/1", again=True, token="b").verdict == "first"
    assert ask(claims, "c", "r3", (), start=f"{start}/q/2", again=True).verdict == "first"


def test_a_run_that_another_has_taken_the_place_of_starts_nothing() -> None:
    """Its last activity may come late."""
    claims = Claims(ClaimsInput())
    ask(claims, "a")
    ask(claims, "b", "r2", ("a",))
    assert ask(claims, "c", "r1").verdict == "started"
    assert ask(again(claims), "c", "r1").verdict == "started"


def test_claims_stay_within_a_payload() -> None:
    """The oldest are forgotten first."""
    claims = Claims(ClaimsInput())
    for number in range(9000):
        ask(claims, f"e-{number:036}/adk-{number:036}")
    start = claims.hand_over()
    assert payload_size(start) < 1_500_000
    assert 3000 < len(start.claims) < 9000
    assert ask(Claims(start), f"e-{8999:036}/adk-{8999:036}", token="b").verdict == "started"


def test_the_claims_of_a_session_have_an_id_that_is_no_sessions() -> None:
    """No app can be named so."""
    assert claims_id("app/a%2Fb/c") == "perdure:claims/app/a%2Fb/c"
