"""What an activity's failure holds has an end, and what decides on its retries stays."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.client import Client
from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    FailureConverter,
)
from temporalio.exceptions import ApplicationError

from perdure.config import ConnectionConfig
from perdure.temporal.payloads import (
    BoundedFailureConverter,
    BoundedFailureConverterWithEncodedAttributes,
    adapt,
    data_converter,
)
from tests.activities.exit_agents import KINDS

CONVERTERS = [BoundedFailureConverter, BoundedFailureConverterWithEncodedAttributes]
_MAX_BYTES = 120_000


def written(error: BaseException, converter: type[DefaultFailureConverter]) -> Failure:
    failure = Failure()
    converter().to_failure(error, data_converter.payload_converter, failure)
    return failure


@pytest.mark.parametrize("converter", CONVERTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_raised_is_written_in_a_bearable_size(kind: str, converter: type[DefaultFailureConverter]) -> None:
    """The server refuses a failure of 2 MB, and then retries nothing."""
    with pytest.raises(BaseException) as caught:
        KINDS[kind][0]()
    failure = written(caught.value, converter)
    assert failure.ByteSize() < _MAX_BYTES
    assert Failure.FromString(failure.SerializeToString()) == failure
    assert failure.application_failure_info.type or kind in ("Temporal's CancelledError", "completion by somebody else")


def test_causes_and_frames_are_the_nearest_ones() -> None:
    with pytest.raises(RuntimeError) as chained:
        KINDS["a thousand causes"][0]()
    failure = written(chained.value, BoundedFailureConverter)
    causes: list[str] = []
    while failure.HasField("cause"):
        failure = failure.cause
        causes.append(failure.message[:9])
    assert causes == [f"cause {number}" for number in (999, 998, 997, 996, 995)]
    with pytest.raises(RecursionError) as deep:
        KINDS["many frames"][0]()
    trace = written(deep.value, BoundedFailureConverter).stack_trace
    assert 1 < trace.count("File ") <= 20
    assert 'raise RecursionError("too deep")' in trace


def test_what_decides_on_retries_stays() -> None:
    details = (1, "y" * 3_000_000, object(), {"kept": True})
    error = ApplicationError(
        "x" * 3_000_000, *details, type="Refused", non_retryable=True, next_retry_delay=timedelta(seconds=7)
    )
    failure = written(error, BoundedFailureConverter)
    info = failure.application_failure_info
    assert (info.type, info.non_retryable, info.next_retry_delay.seconds) == ("Refused", True, 7)
    assert [json.loads(payload.data) for payload in info.details.payloads] == [1, {"kept": True}]
    assert failure.message.endswith("(2,996,000 more characters)")


def test_an_encrypted_failure_says_nothing_in_the_open() -> None:
    failure = written(ValueError("secret"), BoundedFailureConverterWithEncodedAttributes)
    assert (failure.message, failure.stack_trace) == ("Encoded failure", "")
    assert json.loads(failure.encoded_attributes.data)["message"] == "secret"


class Own(DefaultFailureConverter):
    """Somebody's converter."""


@pytest.mark.parametrize(
    ("given", "used"),
    [
        (DefaultFailureConverter, BoundedFailureConverter),
        (DefaultFailureConverterWithEncodedAttributes, BoundedFailureConverterWithEncodedAttributes),
        (Own, Own),
    ],
)
async def test_a_client_of_ones_own_gets_bounded_failures(
    given: type[FailureConverter], used: type[FailureConverter]
) -> None:
    client = await Client.connect("127.0.0.1:1", lazy=True, data_converter=DataConverter(failure_converter_class=given))
    assert adapt(client).data_converter.failure_converter_class is used
    codec = ConnectionConfig(payload_codec=None).data_converter
    assert codec.failure_converter_class is BoundedFailureConverter
