"""The agent tree around `StoryFlowAgent`, and the app.

Try it: `python -m examples.story_flow`, or `perdure dev examples/story_flow` and then
`perdure run story_flow "A brave kitten in a haunted house"`.
"""

from __future__ import annotations

from examples.models import model_or_script
from examples.story_flow.flow import StoryFlowAgent
from perdure import App, LlmAgent, LoopAgent, ResumabilityConfig, SequentialAgent

THINKING = 0.3
"""Seconds that the scripted model takes for an answer."""


def _script(*texts: str) -> tuple[dict[str, object], ...]:
    return tuple({"text": text, "delay": THINKING} for text in texts)


story_generator = LlmAgent(
    name="story_generator",
    model=model_or_script(
        *_script(
            "Miso the kitten crept into the haunted house. It was dark, and nobody ever saw her again.",
            "Miso the kitten crept into the haunted house, and the ghosts, who had been lonely, poured her some milk.",
        )
    ),
    instruction="Write a story of three sentences about what the user asks for. Make it end well.",
    output_key="current_story",
)
critic = LlmAgent(
    name="critic",
    model=model_or_script(*_script("It is over too soon.", "Better; say how the house sounds.")),
    instruction="Criticise this story in one sentence that says how to improve it:\n{current_story}",
    output_key="criticism",
)
reviser = LlmAgent(
    name="reviser",
    model=model_or_script(
        *_script(
            "Miso the kitten crept into the haunted house. Stair by stair she climbed. Nobody ever saw her again.",
            "Miso the kitten crept into the creaking house. Stair by stair she climbed. Nobody ever saw her again.",
        )
    ),
    instruction="Revise this story:\n{current_story}\nTake up this criticism:\n{criticism}\nReturn the story only.",
    output_key="current_story",
)
grammar_check = LlmAgent(
    name="grammar_check",
    model=model_or_script(*_script("The grammar is good.")),
    instruction="List the mistakes of grammar in this story, or say that it is good:\n{current_story}",
    output_key="grammar",
)
tone_check = LlmAgent(
    name="tone_check",
    model=model_or_script(*_script("negative")),
    instruction="Say in one word whether this story's tone is positive, negative or neutral:\n{current_story}",
    output_key="tone",
)

revision = LoopAgent(name="revision", sub_agents=[critic, reviser], max_iterations=2)
checks = SequentialAgent(name="checks", sub_agents=[grammar_check, tone_check])

root_agent = StoryFlowAgent(
    name="story_flow_agent",
    description="Writes a story, has it criticised and revised, and checks it.",
    story_generator=story_generator,
    revision=revision,
    checks=checks,
    sub_agents=[story_generator, revision, checks],
)

app = App(name="story_flow", root_agent=root_agent, resumability_config=ResumabilityConfig(is_resumable=True))
