"""Plain OpenAI JSONL: messages in wire form, arguments as JSON strings, ids kept, tools beside them."""

from __future__ import annotations

from typing import Any

from agentomnia.task.trajectory import Trajectory


def openai_row(trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory in OpenAI form."""
    return {
        "id": trajectory.id,
        "messages": [m.to_wire() for m in trajectory.messages],
        "tools": list(trajectory.tools),
        "metadata": {
            "task": trajectory.task,
            "environment": trajectory.environment,
            "reward": trajectory.reward,
            "domain": trajectory.coordinate.domain,
        },
    }
