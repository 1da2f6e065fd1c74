"""The expression language of cards: a checked subset of Python, translated to plain Python source.

What an author writes reads like the domain; what is compiled reads like hand-written code:

    appointment.status == "held"          appointment["status"] == "held"
    appointment.stylist.level             self.stylists[appointment["stylist_id"]]["level"]
    Card[card_id].balance                 self.cards[card_id]["balance"]
    [a for a in Appointment if a.start > now]
                                          [a for a in self.appointments.values() if a["start"] > self.clock["now"]]

The check is on the syntax tree and needs no running program: names must be bound, fields must exist,
calls are limited to `FUNCTIONS` and a few string methods. Statements (the body of a procedure) add
assignment to fields, `x = new(Entity, field=…)`, `delete(record)`, `for` and `if`.
"""

from __future__ import annotations

import ast
import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from agentomnia.environment.schema import unstorable
from agentomnia.environment.spec import Entity, EnvironmentSpec
from agentomnia.errors import ExpressionError

BUILTINS = frozenset(
    (
        "len",
        "sum",
        "min",
        "max",
        "abs",
        "round",
        "any",
        "all",
        "sorted",
        "int",
        "float",
        "str",
        "next",
        "set",
        "list",
    )
)
DATE_FUNCTIONS = frozenset(
    ("days_between", "minutes_between", "add_days", "add_minutes", "add_months", "weekday", "date_of")
)
FUNCTIONS = BUILTINS | DATE_FUNCTIONS
_TAKEN_NAMES = FUNCTIONS | {"self", "now", "today", "new", "delete", "dict", "deepcopy"}
_DEEPEST = 80
"""Levels of nesting that an expression may have."""
STRING_METHODS = frozenset(
    (
        "lower",
        "upper",
        "strip",
        "startswith",
        "endswith",
        "split",
        "join",
        "replace",
        "isdigit",
        "isalpha",
        "count",
        "title",
    )
)

_ALLOWED_NODES = (
    ast.Expression, ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE,
    ast.In, ast.NotIn, ast.Is, ast.IsNot, ast.IfExp, ast.Constant, ast.Name, ast.Load, ast.Store, ast.Attribute,
    ast.Subscript, ast.Slice, ast.Call, ast.keyword, ast.List, ast.Tuple, ast.Set, ast.Dict, ast.ListComp,
    ast.GeneratorExp, ast.SetComp, ast.DictComp, ast.comprehension, ast.Lambda, ast.arguments, ast.arg,
    ast.JoinedStr, ast.FormattedValue,
)  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """What a name or an expression stands for: a record of `entity`, many records, or a plain value."""

    entity: str | None = None
    many: bool = False


VALUE = Kind()


@dataclass(frozen=True)
class Scope:
    """The names an expression may use."""

    spec: EnvironmentSpec
    names: Mapping[str, Kind]
    where: str
    """For messages: which tool or rule is being read."""

    def bind(self, **kinds: Kind) -> Scope:
        """The scope with more names.

        Raises:
            ExpressionError: a name could not stand in a program.
        """
        for name in kinds:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_") or name == "self":
                raise ExpressionError(f"{self.where}: {name!r} cannot be a name; use lower case, digits, underscores")
        return replace(self, names={**self.names, **kinds})

    def bind_new(self, name: str, kind: Kind) -> Scope:
        """The scope with a name that the author chose, which must hide nothing of the language.

        Raises:
            ExpressionError: the name has another meaning.
        """
        if name in _TAKEN_NAMES or any(name == e.name for e in self.spec.entities):
            raise ExpressionError(f"{self.where}: {name!r} has a meaning of its own; choose another name")
        return self.bind(**{name: kind})


@dataclass
class Effects:
    """What a procedure reads and writes, gathered while it is translated."""

    reads: set[str] = field(default_factory=set)
    """Entities whose records are looked at."""
    writes: set[tuple[str, str]] = field(default_factory=set)
    """`(entity, field)`; the field is `+` for a creation and `-` for a deletion."""
    functions: set[str] = field(default_factory=set)
    """Date functions used."""


@dataclass(frozen=True)
class Translated:
    """An expression as Python source, and what it stands for."""

    source: str
    kind: Kind


def translate(text: str, scope: Scope, effects: Effects | None = None) -> Translated:
    """Check one expression and translate it.

    Args:
        text: the expression in the language of cards.
        scope: the names it may use.
        effects: filled with what the expression reads.

    Raises:
        ExpressionError: the text is not an expression of the language; says what and where.
    """
    tree = _parse(text, "eval", scope)
    assert isinstance(tree, ast.Expression)
    translator = _Translator(scope, effects or Effects())
    node, kind = translator.visit(tree.body, scope)
    return Translated(ast.unparse(ast.fix_missing_locations(node)), kind)


def translate_negated(text: str, scope: Scope, effects: Effects | None = None) -> str:
    """Translate a condition to the source of its opposite: `a == b` becomes `a != b`, `not x` becomes `x`.

    Raises:
        ExpressionError: the text is not an expression of the language.
    """
    tree = _parse(text, "eval", scope)
    assert isinstance(tree, ast.Expression)
    node, _ = _Translator(scope, effects or Effects()).visit(tree.body, scope)
    return ast.unparse(ast.fix_missing_locations(_opposite(node)))


_OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip


def _opposite(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ast.Compare(node.left, [_OPPOSITES[type(node.ops[0])]()], node.comparators)
    return ast.UnaryOp(ast.Not(), node)


def translate_template(text: str, scope: Scope, effects: Effects | None = None) -> str:
    """Translate a message with `{expression}` parts to the source of a string or an f-string."""
    if "{" not in text:
        return _quoted(text)
    tree = _parse("f" + _quoted(text), "eval", scope)
    assert isinstance(tree, ast.Expression)
    node, _ = _Translator(scope, effects or Effects()).visit(tree.body, scope)
    return ast.unparse(ast.fix_missing_locations(node))


def translate_body(text: str, scope: Scope, effects: Effects) -> tuple[list[str], dict[str, Kind]]:
    """Check and translate the statements of a procedure.

    Returns:
        The lines of Python source (indented by nesting, from column 0), and the names that the
        statements bound, with what they stand for.

    Raises:
        ExpressionError: a statement is outside the language.
    """
    tree = _parse(text, "exec", scope)
    assert isinstance(tree, ast.Module)
    writer = _BodyWriter(_Translator(scope, effects), scope)
    for statement in tree.body:
        writer.write(statement, 0)
    return writer.lines, dict(writer.scope.names)


def _parse(text: str, mode: str, scope: Scope) -> ast.AST:
    try:
        tree = ast.parse(text.strip(), mode=mode)
    except SyntaxError as error:
        raise ExpressionError(f"{scope.where}: {text!r} is not Python: {error.msg}; correct the expression") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{scope.where}: {text[:80]!r} cannot be read: {error}; correct the expression") from None
    if _depth(tree) > _DEEPEST:
        raise ExpressionError(f"{scope.where}: {text[:80]!r} is nested too deeply; name parts of it with `let`")
    return tree


def _depth(tree: ast.AST) -> int:
    depth, level = 0, [tree]
    while level:
        depth, level = depth + 1, [child for node in level for child in ast.iter_child_nodes(node)]
    return depth


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _name(identifier: str) -> ast.Name:
    return ast.Name(identifier, ast.Load())


def _self(attribute: str) -> ast.Attribute:
    return ast.Attribute(_name("self"), attribute, ast.Load())


def _item(owner: ast.expr, key: ast.expr) -> ast.Subscript:
    return ast.Subscript(owner, key, ast.Load())


class _Translator:
    """Translates expression nodes; each visit returns the new node and its kind."""

    def __init__(self, scope: Scope, effects: Effects) -> None:
        self.spec = scope.spec
        self.entities = {e.name: e for e in scope.spec.entities}
        self.effects = effects

    def fail(self, node: ast.AST, why: str, scope: Scope) -> ExpressionError:
        return ExpressionError(f"{scope.where}: {ast.unparse(node)!r}: {why}")

    def visit(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        if not isinstance(node, _ALLOWED_NODES):
            raise self.fail(node, f"{type(node).__name__} is outside the language; use a plain expression", scope)
        special: dict[type, Callable[[ast.expr, Scope], tuple[ast.expr, Kind]]] = {
            ast.Name: self._visit_name,
            ast.Attribute: self._visit_attribute,
            ast.Subscript: self._visit_subscript,
            ast.Call: self._visit_call,
            ast.Compare: self._visit_compare,
            ast.ListComp: self._visit_comprehension,
            ast.GeneratorExp: self._visit_comprehension,
            ast.SetComp: self._visit_comprehension,
            ast.DictComp: self._visit_comprehension,
            ast.IfExp: self._visit_conditional,
            ast.BinOp: self._visit_operation,
            ast.UnaryOp: self._visit_operation,
            ast.Constant: self._visit_constant,
            ast.Dict: self._visit_dict,
            ast.Lambda: self._visit_lambda,
        }
        handler = special.get(type(node))
        return handler(node, scope) if handler else (self._visit_children(node, scope), VALUE)

    def value(self, node: ast.expr, scope: Scope) -> ast.expr:
        """Translate a node whose kind does not matter."""
        return self.visit(node, scope)[0]

    def _visit_children(self, node: ast.expr, scope: Scope) -> ast.expr:
        for name, child in ast.iter_fields(node):
            if isinstance(child, ast.expr):
                setattr(node, name, self.value(child, scope))
            elif isinstance(child, list):
                setattr(node, name, [self.value(c, scope) if isinstance(c, ast.expr) else c for c in child])
        return node

    def _visit_operation(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.BinOp | ast.UnaryOp)
        if not isinstance(node.op, _ALLOWED_NODES):
            raise self.fail(node, f"{type(node.op).__name__} is outside the language; use + - * / // % or not", scope)
        return self._visit_children(node, scope), VALUE

    def _visit_constant(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Constant)
        problem = unstorable(node.value)
        if problem is not None:
            raise self.fail(node, f"no value of a record; write {problem}", scope)
        return node, VALUE

    def _visit_dict(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Dict)
        if None in node.keys:
            raise self.fail(node, "`**` is outside the language; write the keys out", scope)
        return self._visit_children(node, scope), VALUE

    def _visit_lambda(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        raise self.fail(node, "a lambda can only be a `key=` of one plain argument; write the expression itself", scope)

    def _visit_name(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Name)
        if node.id in scope.names:
            return _name(node.id), scope.names[node.id]
        if node.id in self.entities:
            self.effects.reads.add(node.id)
            container = ast.Call(ast.Attribute(_self(self.entities[node.id].plural), "values", ast.Load()), [], [])
            return container, Kind(node.id, many=True)
        if node.id == "now":
            return _item(_self("clock"), ast.Constant("now")), VALUE
        if node.id == "today":
            now = _item(_self("clock"), ast.Constant("now"))
            return _item(now, ast.Slice(None, ast.Constant(10), None)), VALUE
        known = ", ".join(sorted((*scope.names, *self.entities, "now", "today")))
        raise self.fail(node, f"unknown name; known here: {known}", scope)

    def _visit_attribute(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Attribute)
        owner, kind = self.visit(node.value, scope)
        if kind.entity is None or kind.many:
            raise self.fail(
                node, f"{ast.unparse(node.value)!r} has no fields; name one record, or loop over many", scope
            )
        entity = self.entities[kind.entity]
        self.effects.reads.add(entity.name)
        if node.attr in entity.fields:
            return _item(owner, ast.Constant(node.attr)), VALUE
        return self._follow(node, owner, entity, scope)

    def _follow(self, node: ast.Attribute, owner: ast.expr, entity: Entity, scope: Scope) -> tuple[ast.expr, Kind]:
        """Traverse a reference: `appointment.stylist` is the record that `stylist_id` names."""
        reference = f"{node.attr}_id"
        attribute = next((a for a in entity.attributes if a.name == reference and a.target), None)
        if attribute is None or attribute.target is None:
            raise self.fail(node, f"{entity.name} has no field {node.attr!r}; it has {', '.join(entity.fields)}", scope)
        target = self.entities[attribute.target]
        self.effects.reads.add(target.name)
        return _item(_self(target.plural), _item(owner, ast.Constant(reference))), Kind(target.name)

    def _visit_subscript(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Subscript)
        owner = node.value
        if isinstance(owner, ast.Name) and owner.id in self.entities and owner.id not in scope.names:
            self.effects.reads.add(owner.id)
            key = self.value(node.slice, scope)
            return _item(_self(self.entities[owner.id].plural), key), Kind(owner.id)
        value, kind = self.visit(owner, scope)
        if isinstance(node.slice, ast.Slice):
            return _item(value, self._visit_children(node.slice, scope)), kind
        element = Kind(kind.entity) if kind.many else VALUE
        return _item(value, self.value(node.slice, scope)), element

    def _visit_compare(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Compare)
        left, kind = self.visit(node.left, scope)
        if kind.entity is not None and not kind.many and not isinstance(node.ops[0], ast.Is | ast.IsNot):
            raise self.fail(node, "compares a whole record; compare one of its fields", scope)
        comparators = [
            _self(self.entities[c.id].plural)
            if isinstance(c, ast.Name) and c.id in self.entities and isinstance(op, ast.In | ast.NotIn)
            else self.value(c, scope)
            for op, c in zip(node.ops, node.comparators)
        ]
        return ast.Compare(left, node.ops, comparators), VALUE

    def _visit_conditional(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.IfExp)
        body, kind = self.visit(node.body, scope)
        otherwise, other_kind = self.visit(node.orelse, scope)
        return ast.IfExp(self.value(node.test, scope), body, otherwise), kind if kind.entity else other_kind

    def _visit_comprehension(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp)
        inner = scope
        generators = []
        for generator in node.generators:
            if generator.is_async:
                raise self.fail(node, "async is outside the language; write a plain `for`", scope)
            source, kind = self.visit(generator.iter, inner)
            inner = self._bind_target(generator.target, kind, inner)
            conditions = [self.value(condition, inner) for condition in generator.ifs]
            generators.append(ast.comprehension(generator.target, source, conditions, 0))
        if isinstance(node, ast.DictComp):
            key, value = self.value(node.key, inner), self.value(node.value, inner)
            return ast.DictComp(key, value, generators), VALUE
        element, kind = self.visit(node.elt, inner)
        return type(node)(element, generators), Kind(kind.entity, many=kind.entity is not None)

    def _bind_target(self, target: ast.expr, kind: Kind, scope: Scope) -> Scope:
        if not isinstance(target, ast.Name):
            raise self.fail(target, "a loop has one name; take parts of it inside", scope)
        return scope.bind_new(target.id, Kind(kind.entity) if kind.many else VALUE)

    def _visit_call(self, node: ast.expr, scope: Scope) -> tuple[ast.expr, Kind]:
        assert isinstance(node, ast.Call)
        if isinstance(node.func, ast.Attribute) and node.func.attr in STRING_METHODS:
            owner, kind = self.visit(node.func.value, scope)
            if kind.entity is None:
                if node.keywords:
                    raise self.fail(node, "a method of text takes no named arguments; give them in order", scope)
                arguments = [self.value(a, scope) for a in node.args]
                return ast.Call(ast.Attribute(owner, node.func.attr, ast.Load()), arguments, []), VALUE
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise self.fail(node, f"only these can be called: {', '.join(sorted(FUNCTIONS))}", scope)
        if node.func.id in DATE_FUNCTIONS:
            self.effects.functions.add(node.func.id)
        visited = [self.visit(a, scope) for a in node.args]
        of = visited[0][1] if visited else VALUE
        if any(k.arg is None for k in node.keywords):
            raise self.fail(node, "`**` is outside the language; write the arguments out", scope)
        keywords = [ast.keyword(k.arg, self._keyword(k.value, of, scope)) for k in node.keywords]
        function = _name(f"_{node.func.id}" if node.func.id in DATE_FUNCTIONS else node.func.id)
        return ast.Call(function, [n for n, _ in visited], keywords), _call_kind(node.func.id, of)

    def _keyword(self, value: ast.expr, of: Kind, scope: Scope) -> ast.expr:
        if not isinstance(value, ast.Lambda):
            return self.value(value, scope)
        match value.args:
            case ast.arguments(
                posonlyargs=[], args=[ast.arg(arg=name)], vararg=None, kwonlyargs=[], kwarg=None, defaults=[]
            ):
                inner = scope.bind_new(name, Kind(of.entity))
                return ast.Lambda(value.args, self.value(value.body, inner))
            case _:
                raise self.fail(value, "a lambda takes one plain argument; write `lambda x: …`", scope)


def _call_kind(function: str, of: Kind) -> Kind:
    if function in ("next", "min", "max"):
        return Kind(of.entity)
    return of if function in ("sorted", "list") else VALUE


class _BodyWriter:
    """Translates the statements of a procedure to lines of source."""

    def __init__(self, translator: _Translator, scope: Scope) -> None:
        self.translator = translator
        self.scope = scope
        self.effects = translator.effects
        self.lines: list[str] = []

    def emit(self, text: str, depth: int) -> None:
        self.lines.append("    " * depth + text)

    def source(self, node: ast.expr) -> tuple[str, Kind]:
        translated, kind = self.translator.visit(node, self.scope)
        return ast.unparse(ast.fix_missing_locations(translated)), kind

    def write(self, statement: ast.stmt, depth: int) -> None:
        match statement:
            case ast.Assign(targets=[ast.Name() as target], value=ast.Call(func=ast.Name(id="new")) as call):
                self._write_new(target.id, call, depth)
            case ast.Expr(value=ast.Call(func=ast.Name(id="new")) as call):
                self._write_new(None, call, depth)
            case ast.Expr(value=ast.Call(func=ast.Name(id="delete"), args=[ast.Name() as record])):
                self._write_delete(record, depth)
            case ast.Assign(targets=[ast.Name() as target], value=value):
                source, kind = self.source(value)
                self.scope = self.scope.bind_new(target.id, kind)
                self.emit(f"{target.id} = {source}", depth)
            case ast.Assign(targets=[ast.Attribute() as target], value=value):
                self.emit(f"{self._target(target)} = {self.source(value)[0]}", depth)
            case ast.AugAssign(target=ast.Attribute() as target, op=ast.Add() | ast.Sub() as op, value=value):
                sign = "+" if isinstance(op, ast.Add) else "-"
                self._write_augmented(target, sign, value, depth)
            case ast.For(target=ast.Name() as target, iter=iterable, body=body, orelse=[]):
                self._write_for(target.id, iterable, body, depth)
            case ast.If(test=test, body=body, orelse=otherwise):
                self._write_if(test, body, otherwise, depth)
            case _:
                raise self.translator.fail(
                    statement, "not a statement of the language; assign to a field, create, delete, loop or branch",
                    self.scope,
                )  # fmt: skip

    def _target(self, target: ast.Attribute) -> str:
        owner, kind = self.source(target.value)
        if kind.entity is None or kind.many:
            raise self.translator.fail(target, "only fields of one record can be set; loop over many", self.scope)
        entity = self.translator.entities[kind.entity]
        self._check_attribute(entity, target.attr, target)
        self.effects.writes.add((entity.name, target.attr))
        return f'{owner}["{target.attr}"]'

    def _write_augmented(self, target: ast.Attribute, sign: str, value: ast.expr, depth: int) -> None:
        place, amount = self._target(target), self.source(value)[0]
        entity = self.source(target.value)[1].entity
        assert entity is not None
        if self.scope.spec.field(f"{entity}.{target.attr}").type == "number":
            # money and measures are kept at two decimals, so that sums do not depend on the order of calls
            self.emit(f"{place} = round({place} {sign} {_grouped(value, amount)}, 2)", depth)
        else:
            self.emit(f"{place} {sign}= {amount}", depth)

    def _write_new(self, name: str | None, call: ast.Call, depth: int) -> None:
        if len(call.args) != 1 or not isinstance(call.args[0], ast.Name):
            raise self.translator.fail(call, "write new(Entity, field=value, …)", self.scope)
        entity = self.translator.entities.get(call.args[0].id)
        if entity is None or any(k.arg is None for k in call.keywords):
            raise self.translator.fail(
                call, "write new(Entity, field=value, …) with an entity of this card", self.scope
            )
        given = {k.arg: self.source(k.value)[0] for k in call.keywords if k.arg}
        for field_name in given:
            self._check_attribute(entity, field_name, call)
        variable = name or self._free_name(entity.variable)
        values = [(a.name, given.get(a.name) or self._default(entity, a.name, call)) for a in entity.attributes]
        key = f"{variable}_key"
        self.emit(f'{key} = self._next_id("{entity.plural}", "{entity.prefix}")', depth)
        self.emit(f"{variable} = {{", depth)
        for field_name, value in ((entity.key, key), *values):
            self.emit(f'    "{field_name}": {value},', depth)
        self.emit("}", depth)
        self.emit(f"self.{entity.plural}[{key}] = {variable}", depth)
        self.effects.writes.add((entity.name, "+"))
        self.scope = self.scope.bind_new(variable, Kind(entity.name))

    def _check_attribute(self, entity: Entity, name: str, node: ast.AST) -> None:
        names = [a.name for a in entity.attributes]
        if name not in names:
            why = f"{entity.name} has no field {name!r} to set; it has {', '.join(names)}"
            raise self.translator.fail(node, why, self.scope)

    def _free_name(self, base: str) -> str:
        return base if base not in self.scope.names else f"new_{base}"

    def _default(self, entity: Entity, field_name: str, call: ast.Call) -> str:
        attribute = entity.attribute(field_name)
        if entity.lifecycle is not None and field_name == entity.lifecycle.field:
            return repr(entity.lifecycle.initial)
        if attribute.default is not None or attribute.nullable:
            return repr(attribute.default)
        if attribute.type == "list":
            return "[]"
        raise self.translator.fail(call, f"{entity.name}.{field_name} has no default: give it a value", self.scope)

    def _write_delete(self, record: ast.Name, depth: int) -> None:
        source, kind = self.source(record)
        if kind.entity is None or kind.many:
            raise self.translator.fail(record, "only one record can be deleted; loop over many", self.scope)
        entity = self.translator.entities[kind.entity]
        self.emit(f'del self.{entity.plural}[{source}["{entity.key}"]]', depth)
        self.effects.writes.add((entity.name, "-"))

    def _write_for(self, name: str, iterable: ast.expr, body: list[ast.stmt], depth: int) -> None:
        source, kind = self.source(iterable)
        # a list of its own: the loop may create or delete records of the container it walks
        self.emit(f"for {name} in {source if source.startswith('[') else f'list({source})'}:", depth)
        self.scope = self.scope.bind_new(name, Kind(kind.entity) if kind.many else VALUE)
        for statement in body:
            self.write(statement, depth + 1)

    def _write_if(self, test: ast.expr, body: list[ast.stmt], otherwise: list[ast.stmt], depth: int) -> None:
        self.emit(f"if {self.source(test)[0]}:", depth)
        for statement in body:
            self.write(statement, depth + 1)
        if otherwise:
            self.emit("else:", depth)
            for statement in otherwise:
                self.write(statement, depth + 1)


def _grouped(node: ast.expr, source: str) -> str:
    return f"({source})" if isinstance(node, ast.BinOp | ast.IfExp | ast.BoolOp | ast.Compare | ast.UnaryOp) else source
