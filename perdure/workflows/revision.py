"""Which changes of Perdure's own code a run has: all of Temporal's patches are asked for here.

They are asked for as a run starts, never behind a local activity: a replay goes on from there as soon as the activity's
marker is read, and does not know yet of a patch whose marker is in the next workflow task (decision 117).
"""

from __future__ import annotations

from temporalio import workflow

SECOND = "second-revision"
"""Patch id: all changes of development versions, and what came with it. Runs from before it

- may lack what has a patch of its own: they ask for the plan by a normal activity only (`PLAN_AT_HAND`), fill a
  workflow task more (`ROOMY`, `BOUNDED`), run any number of local tools at once (`BOUNDED_LOCALS`), and draw the ids of
  questions about calls (`DERIVED_IDS`);
- do not run an approved tool again that asked by itself, if its question was kept;
- may leave the journal's newest entries out of their history as they continue as new;
- forget, as a custom agent is entered again, that it went on after a failure, and mix up what it gathers.
"""

THIRD = "third-revision"
"""Patch id. Runs from before it

- try again all that a custom agent caught if it fails by a failure that the journal happens to hold, since the session
  waited or continued as new beside it, and not what the journal does not hold of it;
- keep what gathered calls bring once their custom agent has ended.
"""

FOURTH = "fourth-revision"
"""Patch id. Runs from before it

- run local tools however long a workflow task may take;
- hand over without a word of a tool that failed beside a call that is held back, which runs again then.
"""

PLAN_AT_HAND = "plan-at-hand"
ROOMY = "tasks-with-room"
BOUNDED = "bounded-tasks"
BOUNDED_LOCALS = "bounded-local-tools"
DERIVED_IDS = "derived-doubt-ids"


class Revision:
    """What one run has."""

    def __init__(self) -> None:
        self.second = False
        self.third = False
        self.fourth = False

    def begin(self) -> None:
        """Ask, as the run starts. A new run has one marker, for all."""
        self.fourth = workflow.patched(FOURTH)
        self.third = self.fourth or workflow.patched(THIRD)
        self.second = self.third or workflow.patched(SECOND)

    def has(self, patch: str) -> bool:
        """Return whether the run has a change of development versions."""
        return self.second or workflow.patched(patch)
