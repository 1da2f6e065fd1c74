"""Qwen3 SFT rows: the rendered text with the character spans that are trained (paper, section 5.1).

For trainers that take text and offsets instead of a chat template: no template can lose the mask, drop the tools or
merge tool results otherwise. Spans count characters (code points), `text[start:end]`; each one runs from the first
character that the assistant writes to its `<|im_end|>`.
"""

from __future__ import annotations

from typing import Any

from agentomnia.task.trajectory import Trajectory
from agentomnia.training.sample import aligned


def qwen3_sft_row(trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory as `{"id", "text", "spans", "messages", "tools"}`.

    Raises:
        ModelOutputError: a role that Qwen3's template lacks.
    """
    text, spans = "", []
    for segment in aligned(trajectory.messages, trajectory.tools):
        if segment.trained:
            spans.append([len(text), len(text) + len(segment.text)])
        text += segment.text
    return {
        "id": trajectory.id,
        "text": text,
        "spans": spans,
        "messages": [m.to_wire() for m in trajectory.messages],
        "tools": list(trajectory.tools),
    }
