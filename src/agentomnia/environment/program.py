"""An environment program: one class, loaded once and shared by every instance of it.

A program comes from a specification through the compiler, or is imported as source from elsewhere
(`environment.imported`). Loading keeps the class, the compiled argument validators and the tool
schemas; instances hold only their state.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from agentomnia.environment.schema import Validator, compile_validator
from agentomnia.environment.state import State
from agentomnia.errors import EnvironmentFault, SpecError

_CODE_CACHE: dict[str, CodeType] = {}


@dataclass(frozen=True)
class ToolSchema:
    """What an agent is told of a tool, and what the instance checks."""

    name: str
    kind: str
    description: str
    parameters: dict[str, Any]

    def to_openai(self) -> dict[str, Any]:
        """The tool in OpenAI function form."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.parameters},
        }


@dataclass(frozen=True)
class Program:
    """A loaded environment class with its tools."""

    name: str
    source: str
    cls: type
    tools: Mapping[str, ToolSchema]
    fields: Mapping[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    """The container and field whose values an argument takes, by tool and argument; empty for imported classes."""
    foreign: bool = False
    """Imported from elsewhere: answers are brought under the protocol, and atomicity is enforced by snapshot."""
    _validators: dict[str, Validator] = field(default_factory=dict, repr=False)

    def validator(self, tool: str) -> Validator:
        """The compiled validator of a tool's arguments, made at its first use."""
        found = self._validators.get(tool)
        if found is None:
            found = self._validators[tool] = compile_validator(self.tools[tool].parameters)
        return found

    def build(self, state: State) -> Any:
        """A new object of the class over a state, which it takes over.

        Raises:
            EnvironmentFault: the class cannot be built over the state.
        """
        try:
            built = self.cls(state)
            if self.foreign:
                vars(built).update(state)
        except Exception as error:
            raise EnvironmentFault(f"{self.name} cannot start: {type(error).__name__}: {error}") from error
        return built


def load_class(source: str, name: str) -> type:
    """Execute the source of a program and return its class.

    Only for source that the compiler wrote, or that the caller trusts.

    Raises:
        SpecError: the source does not define the class.
    """
    key = hashlib.sha256(source.encode()).hexdigest()
    code = _CODE_CACHE.get(key)
    try:
        if code is None:
            code = _CODE_CACHE[key] = compile(source, f"<environment {name}>", "exec")
        namespace: dict[str, Any] = {"__name__": f"agentomnia.environments.{name}"}
        exec(code, namespace)
    except Exception as error:
        raise SpecError(f"the source of {name} does not load: {type(error).__name__}: {error}") from error
    cls = namespace.get(name)
    if not isinstance(cls, type):
        raise SpecError(f"the source defines no class {name}; name the class like the specification")
    return cls
