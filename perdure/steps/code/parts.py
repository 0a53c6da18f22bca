"""Shows the parts (`partial`) of what the code of a custom agent, or of a graph's node, says, while it says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from perdure.journal.events import Event
from perdure.rules.ids import derived_id
from perdure.steps.base import Place
from perdure.steps.code.past import Past
from perdure.streams.drafts import Drafts
from perdure.streams.hub import Piece, Writer

_ATTEMPTS = 100
"""Of one step, at the most, that are told apart from those of steps behind it."""


class Parts:
    """Parts that one run of code yields.

    Parts have the id of the event of their author that comes behind them, from the same node: as a rule, what they are
    parts of. The id is made of how many events are before it, so code that runs from its top again shows them under the
    same one.
    """

    def __init__(self, at: Place) -> None:
        self._at = at
        self._again = 0
        self._counts = Counter[str]()
        """How many events are logged, by where they come from."""
        self._open: dict[tuple[str, str], tuple[str, Writer | None]] = {}
        """What is being said, by where and by whom, with its id; without a writer if nobody followed as it began."""
        self.drafts: Drafts | None = None
        """Of the step that is under way, or was last; `None` where nobody can follow."""
        self.waits = False
        """Some are shown only behind events that no step has returned yet."""

    def begin(self, past: Past, counts: Mapping[str, int]) -> None:
        """Take note that the code begins at its top.

        Args:
            past: What the journal tells of its run.
            counts: How many events that has, by where they come from; none of those that the code comes to again.
        """
        # In its first step there is nothing behind its begin.
        self._again = past.length * _ATTEMPTS if past.length > past.places.begin else 0
        self._counts = Counter(counts)

    def show(self, event: Event, where: str, *, before: int) -> None:
        """Show a part to those who follow.

        Args:
            event: The part.
            where: Where it comes from: of a graph, a node.
            before: How many events the code has logged that no step has returned yet.
        """
        key = (where, event.author)
        if key not in self._open:
            names = (*self._at.scope, self._at.invocation_id, self._at.run, *key, self._counts[where])
            id = derived_id(self._at.key.workflow_id, "part", *names)
            self._open[key] = id, self._begin(id, event, before)
        writer = self._open[key][1]
        if writer is not None:
            writer.add(Piece(event.text or "", event=event.to_json()))
            self.waits |= before > 0

    def _begin(self, id: str, event: Event, before: int) -> Writer | None:
        if self.drafts is None:
            return None
        branch = event.branch or self._at.branch
        return self.drafts.begin(id, author=event.author, branch=branch, before=before, again=self._again)

    def logged(self, author: str, where: str) -> str:
        """Take note that an event is logged; returns its id, if parts of it were told, else nothing."""
        self._counts[where] += 1
        id, writer = self._open.pop((where, author), ("", None))
        if writer is not None:
            writer.end()
        return id

    def end(self) -> None:
        """Say no more."""
        for _, writer in self._open.values():
            if writer is not None:
                writer.end()
        self._open.clear()
