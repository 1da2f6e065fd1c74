"""What a policy with a short context is shown of a task: the same task in fewer tokens.

The whole prompt of an environment (introduction, house rules, JSON Schemas of fifty tools) is longer than the context
of a small policy. Its view keeps what decides: the clock, the fields to answer, one line for each tool exposed, and the
data of each observation. Nothing is added that the long form does not say, and the calls are the same calls.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agentomnia.environment.state import State
from agentomnia.llm.message import Message
from agentomnia.task.task import Task
from agentomnia.training.chat import END, START, assistant_text

_SECONDARY = ("min_", "max_")
_SECONDARY_ENDS = ("_from", "_until")
RECORDS = 3
"""Records of a list that are shown."""
_PAGING = frozenset({"sort_by", "descending", "limit"})


def opening(task: Task, state: State, tools: Sequence[Mapping[str, Any]]) -> str:
    """Everything before the policy's first token.

    Args:
        task: the public task.
        state: its initial state, for the clock.
        tools: the tools exposed, in OpenAI function form.
    """
    lines = ["<tools>", *(signature(t["function"]) for t in tools), "</tools>"]
    if "clock" in state:
        lines.append(f"Now: {state['clock']['now']}")
    if task.answer:
        lines.append("Answer: " + ", ".join(a.name for a in task.answer))
    system = "\n".join(lines)
    return f"{START}system\n{system}{END}\n{START}user\n{task.query}{END}\n{START}assistant\n"


def signature(function: Mapping[str, Any]) -> str:
    """A tool on one line: its name, and its parameters without ranges, sorting and paging.

    Those stay callable; they are only not listed.
    """
    schema = function["parameters"]
    required = set(schema.get("required", ()))
    listed = [name for name in schema.get("properties", {}) if name in required or not _secondary(name)]
    return f"{function['name']}({', '.join(listed)})"


def _secondary(name: str) -> bool:
    return name in _PAGING or name.startswith(_SECONDARY) or name.endswith(_SECONDARY_ENDS)


def observation(content: str) -> str:
    """An observation as the view shows it: the data of an answer, or its error, in JSON.

    A list longer than `RECORDS` is cut and says how many are left out, as a page of results would. Fields that are
    null are left out.
    """
    answer = json.loads(content)
    if not answer.get("ok") or "data" not in answer:
        return _text({k: v for k, v in answer.items() if k != "ok"})
    return _text(_shown(answer["data"]))


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _shown(v) for k, v in value.items() if v is not None}
    if not isinstance(value, list):
        return value
    more = [f"{len(value) - RECORDS} more"] if len(value) > RECORDS else []
    return [*map(_shown, value[:RECORDS]), *more]


def said(message: Message) -> str:
    """An assistant's turn as the view says it: its calls, or the closing."""
    return assistant_text(message, thinking=False) if message.tool_calls else closing(message.content or "")


def closing(content: str) -> str:
    """A last message as the view says it: done, and the answers."""
    start = content.find("{")
    return "Done." if start < 0 else f"Done. {content[start:]}"


def _text(value: Any) -> str:
    """JSON with the separators that calls have, so that what is copied stands in the same surroundings."""
    return json.dumps(value, ensure_ascii=False)
