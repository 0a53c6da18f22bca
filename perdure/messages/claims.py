"""Claims of at-most-once calls, which tell outside of a session's own history what was started. Pure.

A reset takes a session's workflow back to a point of its history, and what was started behind that point is forgotten
there. So each start is claimed first in a workflow beside the session's, which stays open as long as the session is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from perdure.journal.compact_json import payload_size

__all__ = ["CLAIM", "CLAIMS_WORKFLOW", "Claim", "ClaimInput", "ClaimResult", "Claims", "ClaimsInput", "claims_id"]

CLAIMS_WORKFLOW = "perdure:claims"
CLAIM = "claim"

_MAX_BYTES = 1_000_000
"""What claims may take, some 4,000 of them: a payload holds 2 MB. Beyond it the oldest are forgotten."""

_MAX_RUNS = 20
"""Runs that are known to be over."""


def claims_id(session_workflow_id: str) -> str:
    """Return the id of the workflow that holds a session's claims."""
    app, _, rest = session_workflow_id.partition("/")
    return f"{CLAIMS_WORKFLOW}/{quote(app, safe='%')}/{rest}"


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True)


class Claim(_Message):
    """A start of an at-most-once tool."""

    key: str
    """The call's idempotency key."""
    start: str = ""
    """Which of the call's starts: a person may let it start after an approval, or again."""
    again: bool = False
    """A person was asked about a start before it, and lets it start again: knowing of that, unlike who approves it."""
    tool: str
    args: str
    """Digest of the arguments."""
    at: float
    """Seconds since the epoch."""
    token: str
    """Drawn by the attempt that claims; one that asks twice gets the same answer."""
    verdict: Literal["first", "lost"] = "first"
    lost: str | None = None
    """The key of the earlier start for which this one was refused."""


class ClaimInput(_Message):
    """Update `claim`."""

    claim: Claim
    run_id: str
    """The run of the session that asks."""
    known: tuple[str, ...] | None = None
    """Keys of all at-most-once calls that the session's journal tells to be started."""


class ClaimResult(_Message):
    """The result of `claim`."""

    verdict: Literal["first", "started", "lost", "unknown_run"]
    """`first`: start it. `started`: it was started before. `lost`: a start of the same tool is not in the journal.
    `unknown_run`: ask again, and say what the journal knows."""
    key: str = ""
    """The key of the earlier start."""
    at: float = 0.0
    """When that was."""


class ClaimsInput(_Message):
    """Starts a session's claims workflow, and carries it on."""

    claims: tuple[Claim, ...] = ()
    runs: tuple[str, ...] = ()
    lost: tuple[str, ...] = Field(default=())


class Claims:
    """The claims of a session, and those that its newest run does not know."""

    def __init__(self, start: ClaimsInput) -> None:
        """Go on from where the run before was."""
        self._claims = {(claim.key, claim.start): claim for claim in start.claims}
        self._runs = dict.fromkeys(start.runs)
        """In order of their first claims: only the last one may start anything, the others are over."""
        self._lost = dict.fromkeys(start.lost)
        """Keys of starts that the last run's journal does not know, and of which nobody has been told there."""

    def __len__(self) -> int:
        """Return how many claims there are."""
        return len(self._claims)

    def hand_over(self) -> ClaimsInput:
        """Return the argument of the next run: the newest claims, as many as a payload takes."""
        kept: list[Claim] = []
        size = 0
        for claim in reversed(self._claims.values()):
            size += payload_size(claim)
            if size > _MAX_BYTES:
                break
            kept.append(claim)
        keys = {claim.key for claim in kept}
        return ClaimsInput(
            claims=tuple(reversed(kept)),
            runs=tuple(self._runs)[-_MAX_RUNS:],
            lost=tuple(key for key in self._lost if key in keys),
        )

    def claim(self, request: ClaimInput) -> ClaimResult:
        """Say whether a start is the first one, and take note of it."""
        claim = request.claim
        found = self._claims.get((claim.key, claim.start))
        if found is not None and found.token == claim.token:
            return self._result(found)
        if request.run_id not in self._runs:
            if self._claims and request.known is None:
                return ClaimResult(verdict="unknown_run")
            self._begin(request.run_id, request.known or ())
        if found is not None or request.run_id != next(reversed(self._runs)):
            # Either it was started, or it belongs to a history that another one has taken the place of.
            self._lost.pop(claim.key, None)
            return ClaimResult(verdict="started", key=claim.key, at=(found or claim).at)
        lost = None if claim.again else self._same_tool(claim)
        if lost is not None:
            del self._lost[lost.key]
            claim = claim.model_copy(update={"verdict": "lost", "lost": lost.key})
        self._claims[claim.key, claim.start] = claim
        return self._result(claim)

    def _begin(self, run_id: str, known: Iterable[str]) -> None:
        """Take note of a run, and of the starts that its journal knows nothing of."""
        self._runs[run_id] = None
        known = set(known)
        known |= {claim.lost for claim in self._claims.values() if claim.lost is not None and claim.key in known}
        started = (claim.key for claim in self._claims.values() if claim.verdict == "first")
        self._lost = {key: None for key in started if key not in known}

    def _same_tool(self, claim: Claim) -> Claim | None:
        """Return the lost start that this one is most likely to repeat."""
        if not self._lost:
            return None
        lost = [known for known in self._claims.values() if known.key in self._lost and known.tool == claim.tool]
        same = (known for known in lost if known.args == claim.args)
        return next(same, lost[0] if lost else None)

    def _result(self, claim: Claim) -> ClaimResult:
        if claim.lost is None:
            return ClaimResult(verdict=claim.verdict, key=claim.key, at=claim.at)
        lost = next((known for known in self._claims.values() if known.key == claim.lost), claim)
        return ClaimResult(verdict=claim.verdict, key=lost.key, at=lost.at)
