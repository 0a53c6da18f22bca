"""Secrets of credentials in JSON: found wherever they are, taken out, put back, not shown."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.journal.secrets import REFERENCE, holds_credentials, opened, redacted, references, sealed

API_KEY: dict[str, Any] = {"authType": "apiKey", "apiKey": "s1"}
OAUTH: dict[str, Any] = {"auth_type": "oauth2", "oauth2": {"client_id": "desk", "client_secret": "s1", "state": "st"}}
BASIC: dict[str, Any] = {
    "authType": "http",
    "http": {
        "scheme": "basic",
        "credentials": {"username": "ann", "password": "s1"},
        "additionalHeaders": {"X-Other": "s2"},
    },
}


def taken_out(value: Any) -> tuple[Any, dict[str, str]]:
    kept: dict[str, str] = {}

    def keep(secret: str) -> str:
        kept[f"n{len(kept)}"] = secret
        return f"{REFERENCE}n{len(kept) - 1}"

    return sealed(value, keep), kept


@pytest.mark.parametrize("credential", [API_KEY, OAUTH, BASIC])
@pytest.mark.parametrize("around", ["alone", "in a config", "in a list", "in the state"])
def test_secrets_are_taken_out_and_put_back(credential: dict[str, Any], around: str) -> None:
    value: Any = {
        "alone": credential,
        "in a config": {"authScheme": {"type": "x"}, "rawAuthCredential": credential, "credentialKey": "k"},
        "in a list": [1, None, [credential]],
        "in the state": {"temp:k": credential, "token": "of no credential"},
    }[around]
    told, kept = taken_out(value)
    assert not any(f'"s{number}"' in json.dumps(told) for number in (1, 2))
    assert references(told) == set(kept)
    assert holds_credentials(told)
    assert opened(told, kept) == value
    # What is a reference already is kept as it is.
    assert taken_out(told) == (told, {})


@pytest.mark.parametrize(
    "value",
    [
        {"token": "t", "password": "p", "api_key": "k"},
        {"authType": "none of these", "apiKey": "k"},
        {"authType": ["apiKey"], "apiKey": "k"},
        {"authType": "apiKey", "apiKey": None},
        "apiKey",
        None,
    ],
)
def test_what_is_no_credential_stays(value: Any) -> None:
    assert taken_out(value) == (value, {})
    assert not holds_credentials(value)


def test_a_reference_that_is_not_known_stays() -> None:
    told = {"authType": "apiKey", "apiKey": f"{REFERENCE}n9"}
    assert opened(told, {}) == told


SHOWN: list[tuple[Any, Any]] = [
    (API_KEY, {"authType": "apiKey"}),
    (OAUTH, {"auth_type": "oauth2", "oauth2": {"client_id": "desk", "state": "st"}}),
    ({"rawAuthCredential": {"apiKey": "s1"}}, {"rawAuthCredential": {}}),
    (
        {"name": "adk_request_credential", "response": {"apiKey": "s1", "x": [{"token": "s1"}]}},
        {"name": "adk_request_credential", "response": {"x": [{}]}},
    ),
    ({"requested_auth_configs": {"c": {"token": "s1"}}}, {"requested_auth_configs": {"c": {}}}),
    ({"name": "other", "response": {"token": "kept"}}, {"name": "other", "response": {"token": "kept"}}),
]


@pytest.mark.parametrize(("value", "shown"), SHOWN)
def test_what_is_shown_has_no_secrets(value: Any, shown: Any) -> None:
    assert redacted({"a": [value]}) == {"a": [shown]}


def _api_key(secret: Any) -> dict[str, Any]:
    return {"x": 1, "authType": "apiKey", "apiKey": secret}


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["apiKey", "authType", "oauth2", "token", "x"]) | st.text(), inner, max_size=4
        )
        | inner.map(_api_key)
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_json_comes_back(value: Any) -> None:
    told, kept = taken_out(value)
    assert opened(told, kept) == value
