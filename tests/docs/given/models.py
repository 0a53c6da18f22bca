"""What docs/models.md takes for granted."""

from google.genai import types as types
from pydantic import BaseModel as BaseModel

from perdure import BaseLlm as BaseLlm
from perdure import LlmAgent as LlmAgent
from perdure import LLMRegistry as LLMRegistry
from perdure import LlmResponse as LlmResponse
