"""An environment program: one class, loaded once and shared by every instance of it.

A program comes from a specification through the compiler, or is imported as source from elsewhere
(`environment.imported`). Loading keeps the class, the compiled argument validators and the tool
schemas; instances hold only their state.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import CodeType, ModuleType
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
    """Imported from elsewhere: answers are brought under the protocol, and atomicity is enforced by the instance."""
    opaque: frozenset[str] = frozenset()
    """Attributes of an imported class that JSON cannot hold: no part of the state; the constructor gives them."""
    _validators: dict[str, Validator] = field(default_factory=dict, repr=False)

    def validator(self, tool: str) -> Validator:
        """The compiled validator of a tool's arguments, made at its first use."""
        found = self._validators.get(tool)
        if found is None:
            found = self._validators[tool] = compile_validator(self.tools[tool].parameters)
        return found

    @cached_property
    def methods(self) -> Mapping[str, Any]:
        """What implements the tools, unbound, inherited methods too; only imported classes have bases."""
        found: dict[str, Any] = {}
        for base in reversed(self.cls.__mro__):
            found |= {name: method for name, method in vars(base).items() if name in self.tools}
        return found

    def build(self, state: State) -> Any:
        """A new object of the class over a state, which it takes over.

        Raises:
            EnvironmentFault: the class cannot be built over the state.
        """
        try:
            return _build_foreign(self.cls, state) if self.foreign else self.cls(state)
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(f"{self.name} cannot start: {type(error).__name__}: {error}") from error

    def state_of(self, built: Any) -> State:
        """The state inside an object of the class, live."""
        attributes: State = vars(built)
        return {k: v for k, v in attributes.items() if k not in self.opaque} if self.opaque else attributes


def _build_foreign(cls: Any, state: State) -> Any:
    """Imported classes take their values, an empty object, or nothing; then every value is set on the instance."""
    for arguments in ((dict(state),), ({},)):
        try:
            built = cls(*arguments)
            break
        except TypeError:
            continue
    else:
        built = cls()
    for name, value in state.items():
        setattr(built, name, value)
    return built


def load_class(source: str, name: str, code: CodeType | None = None) -> type:
    """Execute the source of a program and return its class.

    Only for source that the compiler wrote, or that the caller trusts.

    Args:
        source: defines the class.
        name: of the class.
        code: the source compiled before, where that is at hand.

    Raises:
        SpecError: the source does not define the class.
    """
    qualified = f"agentomnia.environments.{name}"
    try:
        code = code or _compiled(source, name)
        # dataclasses look their module up while they are made
        module = sys.modules[qualified] = ModuleType(qualified)
        exec(code, vars(module))
    except (Exception, SystemExit) as error:
        raise SpecError(f"the source of {name} does not load: {type(error).__name__}: {error}") from error
    finally:
        sys.modules.pop(qualified, None)
    cls = vars(module).get(name)
    if not isinstance(cls, type):
        raise SpecError(f"the source defines no class {name}; name the class like the specification")
    return cls


def _compiled(source: str, name: str) -> CodeType:
    key = hashlib.sha256(source.encode(errors="surrogatepass")).hexdigest()
    code = _CODE_CACHE.get(key)
    if code is None:
        code = _CODE_CACHE[key] = compile(source, f"<environment {name}>", "exec")
    return code
