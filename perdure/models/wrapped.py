"""`WrappedModel`: a model around another one, as which it passes."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from perdure.models.base import BaseLlm, LlmRequest, LlmResponse


class WrappedModel(BaseLlm):
    """Hands each request on; a subclass does something beside."""

    def __init__(self, inner: BaseLlm) -> None:
        """Wrap a model."""
        super().__init__(inner.model)
        self.inner = inner

    @property
    def provider(self) -> str:
        """As the model says."""
        return self.inner.provider

    @property
    def pairs_by_id(self) -> bool:
        """As the model says."""
        return self.inner.pairs_by_id

    @property
    def output_schema_and_tools(self) -> bool:
        """Whether the model takes a schema for its answer beside tools."""
        return self.inner.output_schema_and_tools

    def look_at(self, llm_request: LlmRequest) -> None:
        """See a request before the model does. Default: nothing is done."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Look at the request, and yield what the model does."""
        self.look_at(llm_request)
        async for response in self.inner.generate_content_async(llm_request, stream):
            yield response
