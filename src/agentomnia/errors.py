"""One exception tree. Every message ends with what the reader can do next.

OmniaError
├── InputError               a file or an argument of the user's cannot be used
│   ├── SpecError            an environment specification contradicts itself
│   ├── CardError            a domain card or archetype does not say a whole environment
│   ├── ExpressionError      an expression is outside the language of cards
│   ├── SeedError            an OpenAPI file, MCP dump or other seed cannot be read
│   ├── TaxonomyError        an id or name that the taxonomy does not have
│   ├── RunError             a run directory that cannot be continued
│   └── InstanceError        there is no such live instance, or it is another tenant's
├── EnvironmentFault         a tool let an exception escape, or broke the result protocol
│   └── CallTimeout          a tool ran past its time and was stopped
├── ModelOutputError         a model answered outside the protocol
└── InfrastructureError      a server, a worker or a disk failed: never the agent's fault
    └── CapacityError        no room for another instance or call now
"""


class OmniaError(Exception):
    """Root of everything this package raises on purpose."""


class InputError(OmniaError):
    """A file or an argument of the user's cannot be used."""


class SpecError(InputError):
    """An environment specification contradicts itself."""


class CardError(InputError):
    """A domain card or archetype does not say a whole environment."""


class ExpressionError(InputError):
    """An expression is outside the language of cards."""


class SeedError(InputError):
    """A seed file cannot be read."""


class TaxonomyError(InputError):
    """An id or name that the taxonomy does not have."""


class RunError(InputError):
    """A run directory that cannot be continued."""


class InstanceError(InputError):
    """There is no such live instance, or it is another tenant's."""


class EnvironmentFault(OmniaError):
    """A tool let an exception escape, or answered outside the result protocol."""


class CallTimeout(EnvironmentFault):
    """A tool ran past its time and was stopped."""


class ModelOutputError(OmniaError):
    """A model answered outside the protocol."""


class InfrastructureError(OmniaError):
    """A server, a worker or a disk failed: never the agent's fault."""


class CapacityError(InfrastructureError):
    """No room for another instance or call now."""
