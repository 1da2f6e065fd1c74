"""Paths as resources: which record a path leads to, and what the method does there.

GET    /users                       list users           POST /users               create one
GET    /users/{userId}              read one             PUT, PATCH, DELETE        update, delete it
GET    /users/{userId}/orders       list the orders of a user
POST   /orders/{orderId}/cancel     move an order to a state
POST   /#X-Amz-Target=CreateTable   no path worth the name: the operationId tells (`verbs.said`)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from agentomnia.seeds.call import Call
from agentomnia.seeds.naming import singular, snake, words
from agentomnia.seeds.plan import Plan, Planned, is_list, looks_like_id, record_in
from agentomnia.seeds.seed import Report
from agentomnia.seeds.verbs import DEEDS, READS, Deed, Said, deed_of, is_move, names_nothing, said

_VERSION = re.compile(r"[-_.]v\d+\Z", re.IGNORECASE)
_ENDING = re.compile(r"\.(json|xml|csv|php|html|aspx?)\Z")
_ODATA = re.compile(r"([\w.-]+)\('?\{([^}]+)\}'?\)\Z")
_PARAMETER = re.compile(r"\{\+?([^}]+?)\*?\}(?::(\w+))?\Z")
_NAMESPACES = re.compile(
    r"\A(api|rest|v\d+(\.\d+)?|latest|public|admin|internal|beta|alpha|json|services?)\Z", re.IGNORECASE
)
_ALLOWED: dict[str, frozenset[Deed]] = {
    "get": READS,
    "delete": frozenset(("delete", "move")),
    "put": DEEDS - READS,
    "patch": frozenset(("update", "save", "move")),
}
"""What an operation of each method can do; a POST can do anything."""
_SELF = frozenset(("me", "self", "current", "mine"))


@dataclass(frozen=True)
class Node:
    """A literal part of a path with the parameters after it."""

    literal: str
    parameters: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The resource that the literal names."""
        return singular(snake(self.literal))


@dataclass(frozen=True)
class Route:
    """A path in parts."""

    nodes: tuple[Node, ...]
    action: str = ""
    """The custom verb of `/{name}:cancel`."""

    def key(self, until: int) -> tuple[str, ...]:
        """What tells the collection at a node apart from others: the literals up to it."""
        return tuple(n.literal for n in self.nodes[: until + 1])


def route_of(path: str) -> Route:
    """Take a path apart."""
    nodes: list[Node] = []
    action = ""
    for segment in path.partition("#")[0].partition("?")[0].split("/"):
        plain = _VERSION.sub("", _ENDING.sub("", segment))
        if not plain:
            continue
        odata, parameter = _ODATA.match(plain), _PARAMETER.match(plain)
        if odata:
            nodes.append(Node(odata.group(1), (odata.group(2),)))
        elif parameter:
            last = nodes.pop() if nodes else Node("")
            nodes.append(Node(last.literal, (*last.parameters, parameter.group(1))))
            action = parameter.group(2) or ""
        elif "{" not in plain:
            literal, _, action = plain.partition(":")
            nodes.append(Node(literal))
    return Route(tuple(nodes), action)


class RouteReader:
    """Plans the operations of one API by their paths."""

    def __init__(self, calls: Iterable[Call], report: Report) -> None:
        """Look at every path once, to know which literals are collections."""
        self.calls = tuple(calls)
        self.report = report
        self.routes = {c.label: route_of(c.path) for c in self.calls}
        self.collections = {
            route.key(i)
            for route in self.routes.values()
            for i, node in enumerate(route.nodes)
            if node.parameters and node.literal
        }
        self.fewest = self._fewest()
        self.variables = self._variables()

    def plan(self) -> Plan:
        """Plan every operation; one that nothing is known of is reported."""
        plan = Plan()
        for call in self.calls:
            planned = self._planned(call)
            if planned is None:
                self.report.leave_out(call.label, "its path and name do not tell which record it reads or changes")
            else:
                plan.add(planned)
        return plan

    def _fewest(self) -> dict[tuple[str, ...], int]:
        """How many parameters name one record of a collection; more of them name something inside it."""
        fewest: dict[tuple[str, ...], int] = {}
        for route in self.routes.values():
            for index, node in enumerate(route.nodes):
                if node.parameters:
                    key = route.key(index)
                    fewest[key] = min(len(node.parameters), fewest.get(key, len(node.parameters)))
        return fewest

    def _variables(self) -> dict[tuple[str, ...], str]:
        """A name for each collection; equal literals with different records are told apart by their parents."""
        shown: dict[tuple[str, ...], set[str]] = {}
        for call in self.calls:
            route = self.routes[call.label]
            if call.method == "get" and route.nodes and route.nodes[-1].variable:
                name = record_in(call.answer, route.nodes[-1].variable).name
                shown.setdefault(route.key(len(route.nodes) - 1), set()).update([name] if name else [])
        groups: dict[str, list[tuple[str, ...]]] = {}
        for key in sorted(self.collections | set(shown)):
            groups.setdefault(Node(key[-1]).variable, []).append(key)
        told = {key: self._told_apart(key, keys, shown) for keys in groups.values() for key in keys}
        # `dnszones` and `dnsZones` are one kind of record: the spelling with more words stands for both
        spelled: dict[str, str] = {}
        for variable in sorted(told.values(), key=lambda v: (v.count("_"), v)):
            spelled[variable.replace("_", "")] = variable
        return {key: spelled[variable.replace("_", "")] for key, variable in told.items()}

    def _told_apart(
        self, key: tuple[str, ...], keys: list[tuple[str, ...]], shown: dict[tuple[str, ...], set[str]]
    ) -> str:
        variable = Node(key[-1]).variable
        mine = shown.get(key, set())
        others = [shown.get(k, set()) for k in keys if k != key]
        differs = bool(mine) and any(o and not o & mine for o in others)
        above = [Node(p).variable for p in key[:-1] if not _NAMESPACES.match(p) and Node(p).variable]
        if not differs or not above or above[-1] == variable:
            return variable
        return f"{above[-1]}_{variable}"

    def _planned(self, call: Call) -> Planned | None:
        route = self.routes[call.label]
        if not route.nodes or not route.nodes[-1].variable or "#" in call.path:
            return self._by_name(call)
        if route.action:
            return self._on_item(call, route, words(route.action))
        if route.nodes[-1].parameters:
            return self._item(call, route)
        return self._collection(call, route) or self._tail(call, route) or self._by_name(call)

    def _item(self, call: Call, route: Route) -> Planned | None:
        deeds: dict[str, Deed] = {
            "get": "get",
            "put": "update",
            "patch": "update",
            "delete": "delete",
            "post": "update",
        }
        last = len(route.nodes) - 1
        node = route.nodes[last]
        deed = deeds.get(call.method)
        if deed is None:
            return None
        if call.method == "post" and (told := said(call.spoken_name)) is not None and told.deed == "create":
            return self._by_name(call)
        fewest = self.fewest[route.key(last)]
        if len(node.parameters) > fewest:
            return self._inside(call, route, deed, fewest)
        spoken = said(node.literal)
        if spoken is not None and route.key(last - 1) in self.collections and spoken.deed != "move":
            return self._made(call, route, last, deed, words(node.literal)[0])
        if call.method == "get" and is_list(call.answer, node.variable) and not looks_like_id(node.parameters[-1]):
            return self._by_name(call)
        return self._made(call, route, last, deed, "")

    def _inside(self, call: Call, route: Route, deed: Deed, fewest: int) -> Planned | None:
        """`/zones/{zone}/{type}/{name}` beside `/zones/{zone}`: something inside a zone, which only the name tells."""
        last = len(route.nodes) - 1
        node, spoken = route.nodes[last], said(call.spoken_name, _ALLOWED.get(call.method, DEEDS))
        if spoken is None:
            return None
        if spoken.noun == self._variable(route, last):
            return self._made(call, route, last, deed, "")
        parents, context = self._above(route, last)
        inside = (*parents, (node.parameters[fewest - 1], self._variable(route, last)))
        others = (*context, *node.parameters[: fewest - 1], *node.parameters[fewest:-1])
        return Planned(call, deed, deed, spoken.noun, node.parameters[-1], inside, others)

    def _made(self, call: Call, route: Route, last: int, deed: Deed, verb: str) -> Planned:
        node = route.nodes[last]
        variable = self._variable(route, last)
        parents, context = self._above(route, last)
        return Planned(call, deed, verb or deed, variable, node.parameters[-1] if node.parameters else None, parents,
                       (*context, *node.parameters[:-1]))  # fmt: skip

    def _variable(self, route: Route, index: int) -> str:
        return self.variables.get(route.key(index), route.nodes[index].variable)

    def _above(self, route: Route, last: int) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
        parents: list[tuple[str, str]] = []
        context: list[str] = []
        for index, node in enumerate(route.nodes[:last]):
            if node.parameters and node.literal:
                parents.append((node.parameters[-1], self._variable(route, index)))
                context += node.parameters[:-1]
            else:
                context += node.parameters
        return tuple(parents), tuple(context)

    def _collection(self, call: Call, route: Route) -> Planned | None:
        last = len(route.nodes) - 1
        node = route.nodes[last]
        known = route.key(last) in self.collections
        many = node.variable != snake(node.literal)
        if set(words(node.literal)) & _SELF or _NAMESPACES.match(node.literal) or names_nothing(node.literal):
            return None
        keyed = self._keyed(call, route)
        if keyed is not None:
            return keyed
        untold = not call.answer.properties and call.answer.items is None
        if call.method == "get" and (
            known or is_list(call.answer, node.variable) or (many and untold and said(node.literal) is None)
        ):
            if not known and last and said(node.literal) is not None:
                return None
            return self._made(call, route, last, "list", "")
        if call.method in ("post", "put") and (known or (many and not is_move(node.variable))):
            if call.method == "put" and call.placed("body") == ():
                return None
            return self._made(call, route, last, "create", "")
        return None

    def _keyed(self, call: Call, route: Route) -> Planned | None:
        """An operation on one record whose key is no part of the path: `PATCH /events` with an `id` in its body."""
        deeds: dict[str, Deed] = {"get": "get", "put": "update", "patch": "update", "delete": "delete"}
        last = len(route.nodes) - 1
        variable = self._variable(route, last)
        names = {"id", "uuid", f"{variable}_id", f"{variable}_uuid", f"{variable.rpartition('_')[2]}_id"}
        given = [a for a in call.arguments if a.place != "path" and not a.shape.read_only]
        keys = [a.name for a in given if a.shape.kind in ("string", "integer") and snake(a.name) in names]
        if not keys or call.method not in deeds:
            return None
        if call.method == "get" and (
            is_list(call.answer, variable) or not next(a for a in call.arguments if a.name == keys[0]).required
        ):
            return None
        made = self._made(call, route, last, deeds[call.method], "")
        return Planned(call, made.deed, made.verb, made.resource, keys[0], made.parents, made.context)

    def _tail(self, call: Call, route: Route) -> Planned | None:
        """A last literal that is no collection: an action on the record, or on the collection, before it."""
        last = len(route.nodes) - 1
        if last == 0:
            return None
        before, spoken = route.nodes[last - 1], words(route.nodes[last].literal)
        if before.parameters:
            return self._on_item(call, route, spoken)
        if route.key(last - 1) not in self.collections or not spoken:
            return None
        deed = deed_of(spoken[0])
        if deed in ("get", "list") and is_list(call.answer, before.variable):
            return self._made(call, route, last - 1, "list", spoken[0])
        if deed == "count" and call.method == "get":
            return self._made(call, route, last - 1, "count", "count")
        if deed in ("create", "update") and call.method in ("post", "put") and len(spoken) == 1:
            return self._made(call, route, last - 1, deed, spoken[0])
        return None

    def _on_item(self, call: Call, route: Route, spoken: list[str]) -> Planned | None:
        last = len(route.nodes) - 1
        index = last if route.nodes[last].parameters else last - 1
        if not spoken or not route.nodes[index].literal or call.method == "get":
            return None
        verb = spoken[0] if call.method != "delete" or not is_move(f"un{spoken[0]}") else f"un{spoken[0]}"
        if is_move(verb) and deed_of(verb) not in ("update",):
            return self._made(call, route, index, "move", verb)
        if call.method in ("put", "patch", "post") and call.placed("body"):
            return self._made(call, route, index, "update", "set")
        # a verb that is not known moves the record where one of its states is called after it
        return self._made(call, route, index, "move", verb) if call.method in ("put", "post") else None

    def _by_name(self, call: Call) -> Planned | None:
        """What the operation's own name says, for paths that say nothing."""
        allowed = _ALLOWED.get(call.method, DEEDS)
        spoken = said(call.spoken_name, allowed) or said(route_text(call.path), allowed)
        if spoken is None:
            return None
        planned, route = planned_by_name(call, spoken), self.routes[call.label]
        parents, context = self._above(route, len(route.nodes))
        own = tuple((a, v) for a, v in parents if a != planned.key and v != planned.resource)
        return replace(planned, parents=own, context=context)


def route_text(path: str) -> str:
    """The last literal of a path."""
    nodes = route_of(path).nodes
    return nodes[-1].literal if nodes else ""


def planned_by_name(call: Call, spoken: Said) -> Planned:
    """The plan of an operation whose name tells the deed; the argument that names the record is found by its name."""
    deed = spoken.deed
    if deed == "get" and is_list(call.answer, spoken.noun):
        deed = "list"
    if deed in ("create", "list"):
        return Planned(call, deed, spoken.verb, spoken.noun)
    return Planned(call, deed, spoken.verb, spoken.noun, key_argument(call, spoken.noun))


def key_argument(call: Call, noun: str) -> str | None:
    """The argument that names the record: `<noun>_id`, `<noun>_name`, an `id`, else the first required text."""
    last = noun.rpartition("_")[2]
    scalars = {
        snake(a.name): a for a in call.arguments if a.shape.kind in ("string", "integer", "any") and not a.shape.choices
    }
    stems = (noun, last)
    for wanted in (
        *(f"{s}_{end}" for s in stems for end in ("id", "uuid", "arn", "identifier", "key", "number", "name")),
        "id", "uuid", "identifier", "arn", noun, last, f"{noun}id", "key", "name", "path",
    ):  # fmt: skip
        if wanted in scalars:
            return scalars[wanted].name
    required = [a for a in scalars.values() if a.required and a.place != "path"]
    ids = [a for a in required if looks_like_id(a.name) and set(words(a.name)) & set(noun.split("_"))]
    if ids:
        return ids[-1].name
    # a single plain argument names the record; an identifier of something else does not
    return required[0].name if len(required) == 1 and not looks_like_id(required[0].name) else None
