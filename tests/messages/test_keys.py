"""The key of a session, and the id of its workflow."""

from __future__ import annotations

import pytest

from perdure.messages.keys import SessionKey


@pytest.mark.parametrize(
    ("key", "workflow_id"),
    [
        (SessionKey("shop", "ann", "s-1"), "shop/ann/s-1"),
        (SessionKey("shop", "ann/%", "s 1'"), "shop/ann%2F%25/s%201%27"),
        (SessionKey("shop", "ann", ""), "shop/ann/"),
    ],
)
def test_a_key_is_told_by_its_workflow_id(key: SessionKey, workflow_id: str) -> None:
    assert key.workflow_id == workflow_id
    assert SessionKey.parse(workflow_id) == key


@pytest.mark.parametrize("workflow_id", ["", "shop", "shop/ann", "shop/ann/s/1"])
def test_other_ids_are_no_keys(workflow_id: str) -> None:
    with pytest.raises(ValueError, match="expected APP/USER/SESSION"):
        SessionKey.parse(workflow_id)
