"""TRL SFT rows: `messages` and `tools` (TRL, dataset formats, "tool calling").

`tools` is a JSON string: Arrow would otherwise give every tool the union of all parameter names, filled with nulls.
The arguments of calls are objects, as TRL wants them. Read the JSONL as it is; a conversion to Parquet would fill those
objects with nulls, and the plain OpenAI rows (`--to openai`), whose arguments are strings, are the ones to convert.
"""

from __future__ import annotations

import json
from typing import Any

from agentomnia.llm.message import Message
from agentomnia.task.trajectory import Trajectory


def trl_sft_row(trajectory: Trajectory) -> dict[str, Any]:
    """One trajectory as a TRL SFT row."""
    return {
        "id": trajectory.id,
        "messages": [_message(m) for m in trajectory.messages],
        "tools": json.dumps(list(trajectory.tools), ensure_ascii=False),
    }


def _message(message: Message) -> dict[str, Any]:
    row: dict[str, Any] = {"role": message.role, "content": message.content or ""}
    if message.reasoning_content:
        row["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        row["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": c.parse_arguments()}}
            for c in message.tool_calls
        ]
    if message.role == "tool":
        row["name"] = message.name
    return row
