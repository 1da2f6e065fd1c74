"""The expression language: what it refuses, and that what it accepts means what it says."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentomnia.environment.spec import Guard, Let, Procedure
from agentomnia.environment.state import State
from agentomnia.errors import ExpressionError, InputError
from agentomnia.synthesis.environments.compiler import build_program, compile_environment, evaluate_with_helpers
from agentomnia.synthesis.environments.expression import (
    FUNCTIONS,
    STRING_METHODS,
    VALUE,
    Effects,
    Kind,
    Scope,
    translate,
    translate_body,
    translate_negated,
    translate_template,
)
from conftest import library_spec

SPEC = library_spec()
SCOPE = Scope(SPEC, {"it": Kind("Book"), "books": Kind("Book", many=True), "amount": VALUE}, "tool probe")
STATE: State = {
    "clock": {"now": "2026-03-09T09:00"},
    "counters": {"shelves": 2, "members": 2, "books": 3},
    "shelves": {
        "SHE-1": {"shelf_id": "SHE-1", "name": "North", "floor": 0},
        "SHE-2": {"shelf_id": "SHE-2", "name": "South", "floor": 2},
    },
    "members": {
        "MEM-1": {"member_id": "MEM-1", "name": "Åsa", "joined_on": "2024-02-29", "loans": 1, "sponsor_id": None},
        "MEM-2": {"member_id": "MEM-2", "name": "Bo", "joined_on": "2025-12-31", "loans": 0, "sponsor_id": "MEM-1"},
    },
    "books": {
        "BOO-1": {
            "book_id": "BOO-1", "title": "A b", "pages": 12, "price": 9.5, "status": "kept", "shelf_id": "SHE-1",
            "holder_id": None, "tags": ["new", "red"], "note": None,
        },
        "BOO-2": {
            "book_id": "BOO-2", "title": "C'd\"", "pages": 300, "price": 30.0, "status": "lent", "shelf_id": "SHE-2",
            "holder_id": "MEM-2", "tags": [], "note": "worn",
        },
        "BOO-3": {
            "book_id": "BOO-3", "title": "", "pages": 7, "price": 0.0, "status": "lost", "shelf_id": "SHE-2",
            "holder_id": None, "tags": ["old"], "note": "x",
        },
    },
}  # fmt: skip


# What is refused

FORBIDDEN = {
    # the way out of the sandbox
    "import": "__import__('os').system('true')",
    "open": "open('/etc/passwd')",
    "eval": "eval('1')",
    "exec": "exec('1')",
    "compile": "compile('1', '', 'eval')",
    "getattr": "getattr(it, 'title')",
    "vars": "vars(it)",
    "type": "type(it)",
    "print": "print(1)",
    "globals": "globals()",
    "breakpoint": "breakpoint()",
    "dict as a function": "dict(a=1)",
    "private helper": "_ok(it)",
    "self": "self.books",
    "self by call": "self._next_id('books', 'X')",
    "dunder of a record": "it.__class__",
    "dunder of a value": "amount.__class__",
    "dunder of text": "''.__class__.__mro__",
    "dunder by chain": "it.title.__class__",
    "dunder name": "__builtins__",
    "private name": "_",
    "attribute of a value": "amount.real",
    "attribute of a field": "it.title.title",
    "attribute of many": "books.title",
    "attribute of an entity": "Book.title",
    "attribute of a call": "len(books).real",
    "attribute of text": "'a'.join",
    # text
    "format": "'{0.__class__}'.format(it)",
    "format_map": "'{a}'.format_map(it)",
    "unlisted method": "it.title.encode()",
    "zfill": "it.title.zfill(9)",
    "translate": "it.title.translate(amount)",
    "f-string with an attribute of a value": "f'{amount.__class__}'",
    "f-string with a call": "f'{open(amount)}'",
    "f-string with an attribute in its format": "f'{amount:{amount.__class__}}'",
    "f-string with a lambda": "f'{(lambda: 1)}'",
    "method of text with names": "it.title.split(sep='a')",
    "method of text with a lambda": "it.title.replace('a', lambda: 1)",
    # lambdas
    "lambda": "lambda: 1",
    "lambda called": "(lambda: 1)()",
    "lambda with a default": "lambda a=__import__('os').system('true'): 1",
    "key with a default": "sorted(books, key=lambda a=__import__('os').system('true'): 1)",
    "key with a second default": "sorted(books, key=lambda a, b=__import__('os').system('true'): 1)",
    "key with a keyword-only default": "sorted(books, key=lambda a, *, b=__import__('os').system('true'): 1)",
    "key with *args": "sorted(books, key=lambda *a: 1)",
    "key with **kwargs": "sorted(books, key=lambda a, **b: 1)",
    "key with a positional-only argument": "sorted(books, key=lambda a, /: 1)",
    "key without argument": "sorted(books, key=lambda: 1)",
    "key as a function": "sorted(books, key=len)",
    "lambda in a list": "[lambda: 1]",
    "lambda as an argument": "min(lambda: 1, 2)",
    # nodes
    "walrus": "(x := 1)",
    "walrus in a comprehension": "[y for y in books if (z := y.pages)]",
    "await": "await amount",
    "yield": "(yield 1)",
    "yield from": "(yield from books)",
    "starred": "[*books]",
    "starred argument": "max(*amount)",
    "double starred argument": "sorted(books, **amount)",
    "double starred dictionary": "{**amount}",
    "async comprehension": "[x async for x in books]",
    "power": "2 ** 100000000",
    "shift": "1 << 100000000",
    "matrix product": "amount @ amount",
    "bitwise": "amount & 1",
    "inversion": "~amount",
    "bytes": "b'x'",
    "complex": "1j",
    "ellipsis": "...",
    "infinity": "1e999",
    "past 64 bits": "99999999999999999999999999",
    "half a surrogate pair": "'\\ud800'",
    # records and names
    "unknown name": "nothing",
    "unknown field": "it.colour",
    "unknown reference": "it.author.name",
    "reference that is a value": "it.pages.name",
    "comprehension over two names": "[a for a, b in books]",
    "comprehension over a field": "[a for it.title in books]",
    "comprehension over a value": "[a.title for a in amount]",
    "comprehension hides self": "[self for self in books]",
    "comprehension hides a private name": "[_ok for _ok in books]",
    "comprehension hides a function": "[len for len in books]",
    "comprehension hides an entity": "[Book for Book in books]",
    "key hides self": "sorted(books, key=lambda self: 1)",
    "whole records compared": "it == amount",
    "whole records ordered": "it < it",
    "called name": "it()",
    "called entity": "Book()",
    "called subscript": "amount[0]()",
    "called parameter": "amount(1)",
    "new outside a body": "new(Book)",
    "delete outside a body": "delete(it)",
    # no expression
    "empty": "",
    "statement": "import os",
    "two expressions": "1; 2",
    "assignment": "amount = 1",
    "unbalanced": "(1",
    "null byte": "1 + \0",
    "nested too deeply": "[" * 150 + "1" + "]" * 150,
    "endless negation": "not " * 3000 + "True",
    "endless sum": "+".join("1" for _ in range(3000)),
}

FORBIDDEN_STATEMENTS = {
    "import": "import os",
    "from import": "from os import system",
    "function": "def f():\n    pass",
    "async function": "async def f():\n    pass",
    "class": "class A:\n    pass",
    "return": "return 1",
    "global": "global it",
    "nonlocal": "nonlocal it",
    "while": "while True:\n    it.pages = 1",
    "try": "try:\n    it.pages = 1\nexcept Exception:\n    it.pages = 2",
    "with": "with amount:\n    it.pages = 1",
    "raise": "raise amount",
    "assert": "assert amount",
    "del": "del it",
    "del of a field": "del it.pages",
    "pass": "pass",
    "break": "for b in books:\n    break",
    "match": "match amount:\n    case 1:\n        it.pages = 1",
    "for with else": "for b in books:\n    b.pages = 1\nelse:\n    it.pages = 1",
    "async for": "async for b in books:\n    b.pages = 1",
    "annotated": "it.pages: int = 1",
    "two targets": "it.pages = it.price = 1",
    "tuple target": "it.pages, it.price = 1, 2",
    "starred target": "[*it.tags] = amount",
    "subscript target": "it['pages'] = 1",
    "entity target": "Book['BOO-1'] = amount",
    "target that is a value": "amount.pages = 1",
    "target of many": "books.pages = 1",
    "deep target": "it.title.x = 1",
    "dunder target": "it.__class__ = amount",
    "key target": "it.book_id = 'X'",
    "target without field": "it.colour = 1",
    "augmented name": "amount += 1",
    "augmented product": "it.pages *= 2",
    "augmented without field": "it.colour += 1",
    "bare expression": "it.pages",
    "bare call": "len(books)",
    "bare method": "it.tags.append(1)",
    "assignment to self": "self = it",
    "assignment to a helper": "_ok = it",
    "assignment to a function": "len = 1",
    "assignment to an entity": "Book = it",
    "loop over self": "for self in books:\n    it.pages = 1",
    "loop over two names": "for a, b in books:\n    it.pages = 1",
    "loop over a field": "for it.pages in amount:\n    it.price = 1",
    "lambda assigned": "f = lambda a=open('x'): 1",
    "new of nothing": "new()",
    "new of a value": "x = new(amount)",
    "new of an unknown entity": "x = new(Author)",
    "new of a call": "x = new(open('x'))",
    "new with two": "x = new(Book, Shelf)",
    "new with **": "x = new(Book, **amount)",
    "new with an unknown field": "x = new(Shelf, name='a', floor=1, colour=2)",
    "new with its key": "x = new(Shelf, shelf_id='X', name='a', floor=1)",
    "new without a needed field": "x = new(Shelf, name='a')",
    "new into self": "self = new(Shelf, name='a', floor=1)",
    "new inside an expression": "it.shelf_id = new(Shelf, name='a', floor=1).shelf_id",
    "delete of a value": "delete(amount)",
    "delete of many": "delete(books)",
    "delete of a field": "delete(it.shelf)",
    "delete of two": "delete(it, it)",
    "global statement after others": "it.pages = 1\nimport os",
    "hidden in a branch": "if amount:\n    import os",
    "hidden in a loop": "for b in books:\n    if amount:\n        open('x')",
}


def assert_says_place_and_action(error: InputError) -> None:
    message = str(error)
    assert message.startswith("tool probe: "), message
    why = message.removeprefix("tool probe: ")
    assert any(mark in why for mark in ("; ", "known here: ", "can be called: ", ": give", "write ")), message
    assert len(message) < 1500, message


@pytest.mark.parametrize("text", FORBIDDEN.values(), ids=FORBIDDEN)
def test_forbidden_expression(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        translate(text, SCOPE)
    assert_says_place_and_action(caught.value)


@pytest.mark.parametrize("text", [t for what, t in FORBIDDEN.items() if t and len(t) < 200 and what != "assignment"])
def test_forbidden_everywhere_an_expression_can_stand(text: str) -> None:
    """Inside calls, comprehensions, conditions, messages and effects nothing becomes legal."""
    for wrapped in (f"[{text}]", f"len({text})", f"[b for b in books if {text}]", f"1 if {text} else 2"):
        with pytest.raises(ExpressionError):
            translate(wrapped, SCOPE)
    with pytest.raises(ExpressionError):
        translate_negated(f"not ({text})", SCOPE)
    with pytest.raises(ExpressionError):
        translate_body(f"it.note = {text}", SCOPE, Effects())
    if not set("'\\\0{=") & set(text):
        with pytest.raises(ExpressionError):
            translate_template(f"A {{{text}}} b", SCOPE)


@pytest.mark.parametrize("text", FORBIDDEN_STATEMENTS.values(), ids=FORBIDDEN_STATEMENTS)
def test_forbidden_statement(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        translate_body(text, SCOPE, Effects())
    assert_says_place_and_action(caught.value)


@pytest.mark.parametrize(
    "text", ["{it.__class__}", "{amount.real}", "{open(1)}", "{it.title", "{}", "{it!x}", "{1:{open}}"]
)
def test_forbidden_message(text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        translate_template(text, SCOPE)
    assert str(caught.value).startswith("tool probe: ")


def test_every_python_builtin_outside_the_list_is_refused() -> None:
    import builtins

    for name in dir(builtins):
        if name.isidentifier() and name not in FUNCTIONS and name not in ("None", "True", "False"):
            with pytest.raises(ExpressionError):
                translate(name, SCOPE)
            with pytest.raises(ExpressionError):
                translate(f"{name}(amount)", SCOPE)


def test_every_method_of_text_outside_the_list_is_refused() -> None:
    for name in dir(str):
        if name not in STRING_METHODS:
            with pytest.raises(ExpressionError):
                translate(f"it.title.{name}()", SCOPE)


HOSTILE = "'); raise SystemExit('injected') #"
NEWLINE = "x\n        raise SystemExit('injected')\n        #"


def hostile_specs() -> dict[str, Any]:
    """Every place of a specification whose text goes into the program."""
    base = SPEC.model_dump(mode="json")

    def changed(path: tuple[Any, ...], value: Any) -> dict[str, Any]:
        import copy

        copied = copy.deepcopy(base)
        place: Any = copied
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        return copied

    texts = (
        "\"; raise SystemExit('injected') #",
        HOSTILE,
        NEWLINE,
        'x"""\nraise SystemExit("injected")\n"""',
        "\r\0",
        "\\",
    )
    places: dict[str, tuple[Any, ...]] = {
        "name": ("name",),
        "title": ("title",),
        "introduction": ("introduction",),
        "clock": ("clock",),
        "rule name": ("rules", 0, "name"),
        "rule sentence": ("rules", 0, "sentence"),
        "rule predicate": ("rules", 0, "predicate"),
        "entity name": ("entities", 0, "name"),
        "entity plural": ("entities", 0, "plural"),
        "entity key": ("entities", 0, "key"),
        "entity prefix": ("entities", 2, "prefix"),
        "entity noun": ("entities", 2, "noun"),
        "attribute name": ("entities", 2, "attributes", 6, "name"),
        "attribute default": ("entities", 2, "attributes", 6, "default"),
        "lifecycle initial": ("entities", 2, "lifecycle", "initial"),
        "tool name": ("tools", 0, "name"),
        "tool description": ("tools", 0, "description"),
        "bare tool description": ("tools", 5, "description"),
        "parameter name": ("tools", 0, "parameters", 0, "name"),
        "parameter description": ("tools", 0, "parameters", 1, "description"),
        "parameter default": ("tools", 5, "parameters", 1, "default"),
        "parameter type": ("tools", 0, "parameters", 0, "json_schema", "type"),
        "binds": ("tools", 0, "parameters", 0, "binds"),
        "guard": ("tools", 0, "action", "steps", 0, "that"),
        "message": ("tools", 0, "action", "steps", 0, "message"),
        "hint": ("tools", 0, "action", "steps", 0, "hint"),
        "body": ("tools", 0, "action", "body"),
        "returned name": ("tools", 1, "action", "returns", 0, 0),
        "returned value": ("tools", 1, "action", "returns", 0, 1),
        "include": ("tools", 4, "action", "include", 0),
        "filter parameter": ("tools", 5, "action", "filters", 0, "parameter"),
        "filter field": ("tools", 5, "action", "filters", 0, "field"),
        "column": ("tools", 5, "action", "columns"),
    }
    found = {}
    for what, path in places.items():
        for number, text in enumerate(texts):
            found[f"{what} {number}"] = changed(path, [text] if what == "column" else text)
    for number, text in enumerate(texts):
        steps = [Let(name=text, value="1").model_dump(mode="json")]
        found[f"let name {number}"] = changed(("tools", 0, "action", "steps"), steps)
    return found


@pytest.mark.parametrize("raw", hostile_specs().values(), ids=hostile_specs())
def test_no_text_of_a_specification_becomes_code(raw: dict[str, Any]) -> None:
    """A specification from elsewhere is data: it is refused, or it compiles to a program that does not run its text."""
    try:
        spec = type(SPEC).model_validate(raw)
        tree = ast.parse(compile_environment(spec).source)
    except (InputError, ValueError, SyntaxError):
        return
    for node in ast.walk(tree):
        assert not isinstance(node, ast.Raise)
        assert not (isinstance(node, ast.Name) and node.id == "SystemExit")
    assert [type(n).__name__ for n in tree.body].count("ClassDef") == 1


@pytest.mark.parametrize(
    "text", ['Says "yes"', '"', "Ends with \\", 'Three """ quotes', 'Four """" quotes', "a\tb", "a\rb", "Ünïcode 漢"]
)
def test_any_description_loads(text: str) -> None:
    tools = [t.model_copy(update={"description": text}) for t in SPEC.tools]
    tools.append(tools[-1].model_copy(update={"name": "bare", "parameters": tools[-1].parameters[:1]}))
    spec = library_spec(introduction=text, title=text, policies=(text,), tools=tuple(tools))
    build_program(spec)


# What is accepted means what it says: a second reading of the language, over plain dictionaries


class Reference:
    """Evaluates the language of cards directly on a state, sharing nothing with the translator."""

    def __init__(self, state: State, **names: Any) -> None:
        self.state = state
        self.entities = {e.name: e for e in SPEC.entities}
        self.names: dict[str, Any] = dict(names)

    def __call__(self, text: str) -> Any:
        return self.read(ast.parse(text.strip(), mode="eval").body, self.names)

    def read(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        return getattr(self, f"read_{type(node).__name__.lower()}")(node, names)

    def read_constant(self, node: ast.Constant, _: Mapping[str, Any]) -> Any:
        return node.value

    def read_name(self, node: ast.Name, names: Mapping[str, Any]) -> Any:
        if node.id in names:
            return names[node.id]
        if node.id in self.entities:
            return list(self.state[self.entities[node.id].plural].values())
        return {"now": self.state["clock"]["now"], "today": self.state["clock"]["now"][:10]}[node.id]

    def read_attribute(self, node: ast.Attribute, names: Mapping[str, Any]) -> Any:
        record = self.read(node.value, names)
        if node.attr in record:
            return record[node.attr]
        entity = next(e for e in SPEC.entities if e.fields == tuple(record))
        target = self.entities[entity.attribute(f"{node.attr}_id").target or ""]
        return self.state[target.plural][record[f"{node.attr}_id"]]

    def read_subscript(self, node: ast.Subscript, names: Mapping[str, Any]) -> Any:
        if isinstance(node.value, ast.Name) and node.value.id in self.entities:
            return self.state[self.entities[node.value.id].plural][self.read(node.slice, names)]
        return self.read(node.value, names)[self.read(node.slice, names)]

    def read_slice(self, node: ast.Slice, names: Mapping[str, Any]) -> slice:
        return slice(*(None if p is None else self.read(p, names) for p in (node.lower, node.upper, node.step)))

    def read_boolop(self, node: ast.BoolOp, names: Mapping[str, Any]) -> Any:
        value = None
        for part in node.values:
            value = self.read(part, names)
            if bool(value) == isinstance(node.op, ast.Or):
                return value
        return value

    def read_unaryop(self, node: ast.UnaryOp, names: Mapping[str, Any]) -> Any:
        value = self.read(node.operand, names)
        return (not value) if isinstance(node.op, ast.Not) else -value

    def read_binop(self, node: ast.BinOp, names: Mapping[str, Any]) -> Any:
        left, right = self.read(node.left, names), self.read(node.right, names)
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.Div():
                return left / right
            case ast.FloorDiv():
                return left // right
            case _:
                return left % right

    def read_compare(self, node: ast.Compare, names: Mapping[str, Any]) -> bool:
        left = self.read(node.left, names)
        for op, comparator in zip(node.ops, node.comparators):
            right = self.read(comparator, names)
            if isinstance(op, ast.In | ast.NotIn) and isinstance(comparator, ast.Name):
                entity = self.entities.get(comparator.id)
                right = [r[entity.key] for r in right] if entity is not None else right
            tests = {
                "Eq": lambda a, b: a == b, "NotEq": lambda a, b: a != b, "Lt": lambda a, b: a < b,
                "LtE": lambda a, b: a <= b, "Gt": lambda a, b: a > b, "GtE": lambda a, b: a >= b,
                "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b, "Is": lambda a, b: a is b,
                "IsNot": lambda a, b: a is not b,
            }  # fmt: skip
            if not tests[type(op).__name__](left, right):
                return False
            left = right
        return True

    def read_ifexp(self, node: ast.IfExp, names: Mapping[str, Any]) -> Any:
        return self.read(node.body if self.read(node.test, names) else node.orelse, names)

    def read_list(self, node: ast.List, names: Mapping[str, Any]) -> list[Any]:
        return [self.read(e, names) for e in node.elts]

    def read_tuple(self, node: ast.Tuple, names: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(self.read(e, names) for e in node.elts)

    def read_set(self, node: ast.Set, names: Mapping[str, Any]) -> set[Any]:
        return {self.read(e, names) for e in node.elts}

    def read_dict(self, node: ast.Dict, names: Mapping[str, Any]) -> dict[Any, Any]:
        return {self.read(k, names): self.read(v, names) for k, v in zip(node.keys, node.values) if k is not None}

    def bindings(self, generators: list[ast.comprehension], names: Mapping[str, Any]) -> Any:
        if not generators:
            yield names
            return
        first, *rest = generators
        assert isinstance(first.target, ast.Name)
        for value in list(self.read(first.iter, names)):
            inner = {**names, first.target.id: value}
            if all(self.read(c, inner) for c in first.ifs):
                yield from self.bindings(rest, inner)

    def read_listcomp(self, node: ast.ListComp, names: Mapping[str, Any]) -> list[Any]:
        return [self.read(node.elt, inner) for inner in self.bindings(node.generators, names)]

    def read_generatorexp(self, node: ast.GeneratorExp, names: Mapping[str, Any]) -> Any:
        return (self.read(node.elt, inner) for inner in self.bindings(node.generators, names))

    def read_setcomp(self, node: ast.SetComp, names: Mapping[str, Any]) -> set[Any]:
        return {self.read(node.elt, inner) for inner in self.bindings(node.generators, names)}

    def read_dictcomp(self, node: ast.DictComp, names: Mapping[str, Any]) -> dict[Any, Any]:
        return {self.read(node.key, i): self.read(node.value, i) for i in self.bindings(node.generators, names)}

    def read_lambda(self, node: ast.Lambda, names: Mapping[str, Any]) -> Any:
        return lambda value: self.read(node.body, {**names, node.args.args[0].arg: value})

    def read_call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        arguments = [self.read(a, names) for a in node.args]
        if isinstance(node.func, ast.Attribute):
            return getattr(self.read(node.func.value, names), node.func.attr)(*arguments)
        assert isinstance(node.func, ast.Name)
        keywords = {str(k.arg): self.read(k.value, names) for k in node.keywords}
        functions = {
            "len": len, "sum": sum, "min": min, "max": max, "abs": abs, "round": round, "any": any, "all": all,
            "sorted": sorted, "int": int, "float": float, "str": str, "next": next, "set": set, "list": list,
            "days_between": lambda a, b: (date.fromisoformat(b[:10]) - date.fromisoformat(a[:10])).days,
            "minutes_between": minutes_between,
            "add_days": lambda d, n: str(date.fromisoformat(d[:10]) + timedelta(days=n)) + d[10:],
            "add_minutes": lambda m, n: (datetime.fromisoformat(m) + timedelta(minutes=n)).strftime("%Y-%m-%dT%H:%M"),
            "add_months": add_months,
            "weekday": lambda d: date.fromisoformat(d[:10]).strftime("%A"),
            "date_of": lambda m: m[:10],
        }  # fmt: skip
        return functions[node.func.id](*arguments, **keywords)

    def read_joinedstr(self, node: ast.JoinedStr, names: Mapping[str, Any]) -> str:
        return "".join(str(self.read(v, names)) for v in node.values)

    def read_formattedvalue(self, node: ast.FormattedValue, names: Mapping[str, Any]) -> str:
        value = self.read(node.value, names)
        value = {ord("r"): repr, ord("s"): str, ord("a"): ascii}.get(node.conversion, lambda v: v)(value)
        return format(value, self.read(node.format_spec, names) if node.format_spec else "")


def minutes_between(earlier: str, later: str) -> int:
    return (datetime.fromisoformat(later) - datetime.fromisoformat(earlier)) // timedelta(minutes=1)


def add_months(day: str, count: int) -> str:
    wanted = date.fromisoformat(day[:10])
    months = wanted.year * 12 + wanted.month - 1 + count
    for last in (wanted.day, 30, 29, 28):
        try:
            return str(date(months // 12, months % 12 + 1, min(wanted.day, last))) + day[10:]
        except ValueError:
            continue
    raise AssertionError


class View:
    """What translated source sees as `self`."""

    def __init__(self, state: State) -> None:
        vars(self).update(state)


def settled(value: Any) -> Any:
    """A value without iterators and views, so that two can be compared."""
    if isinstance(value, dict):
        return {k: settled(v) for k, v in value.items()}
    if isinstance(value, set):
        return ("set", sorted(map(repr, value)))
    if isinstance(value, tuple):
        return ("tuple", [settled(v) for v in value])
    if isinstance(value, str | int | float | bool) or value is None:
        return (type(value).__name__, value)
    return [settled(v) for v in value]


def outcome(function: Any) -> Any:
    try:
        return settled(function())
    except Exception as error:  # noqa: BLE001 - whatever goes wrong must go wrong on both sides
        return type(error)


def both(text: str, key: str, amount: Any = 3) -> tuple[Any, Any]:
    """What the translated source computes, and what the reference reads."""
    source = translate(text, SCOPE).source
    compiled = evaluate_with_helpers(f"lambda self, it, books, amount: {source}")
    book = STATE["books"][key]
    got = outcome(lambda: compiled(View(STATE), book, list(STATE["books"].values()), amount))
    reader = Reference(STATE, it=book, books=list(STATE["books"].values()), amount=amount)
    return got, outcome(lambda: reader(text))


SAMPLE = [
    "it.title", "it.shelf.name", "it.holder.name", "it.holder.sponsor.name", "it.book_id", "it.shelf_id in Shelf",
    "amount in Shelf", "'MEM-1' not in Member", "Member['MEM-1'].name", "Book[it.book_id].shelf.floor", "len(Book)",
    "[b.title for b in Book]", "[b for b in Book if b.pages > 10]", "sorted(Book, key=lambda b: b.pages)[0].title",
    "sorted(Book, key=lambda b: b.pages)[-1:]", "max(Book, key=lambda b: b.price).title", "min(b.pages for b in Book)",
    "next((b.title for b in Book if b.status == 'lost'), None)", "next(b for b in Book if b.pages > 1).shelf.name",
    "sum(b.price for b in Book if b.shelf.floor == 2)", "any(b.holder_id is not None for b in books)",
    "all(b.pages > 0 for b in books) and not it.note", "{b.status for b in Book}", "{b.title: b.pages for b in Book}",
    "[m.name for b in Book for m in Member if b.holder_id == m.member_id]", "set(b.status for b in Book)",
    "list(Book)[0].title", "it.pages if it.pages > amount else amount", "(it if it.pages > 5 else Book['BOO-1']).title",
    "f'{it.title} costs {it.price:.2f} {amount!r}'", "f\"{it.title!r:>10}{'x' if it.note else 'y'}\"", "now", "today",
    "today + 'T00:00' < now", "days_between(today, '2026-04-01')", "minutes_between(now, '2026-03-10T08:59')",
    "add_days(now, -9)", "add_days(today, 400)", "add_minutes(now, 125)", "add_months('2026-01-31', 1)",
    "add_months('2024-02-29', 12)", "add_months('2026-11-30T08:00', -9)", "weekday(today)", "date_of(now)",
    "amount // 2",
    "-it.pages + 2 * (3 - amount) / 4", "it.pages % 5", "1 < amount <= it.pages", "not (it.note is None)",
    "it.note or 'none'", "it.title.lower().replace('a', 'b')", "'-'.join(sorted(it.tags))", "'a,b'.split(',')[1]",
    "it.title[:2]", "it.tags[0]", "it.tags == []", "len(it.tags) > 0 and it.tags[0] in ['new', 'old']", "str(it.price)",
    "int('12') + float('0.5')", "round(it.price / 7, 2)", "abs(-3)", "[[b.pages] for b in Book if b.pages][0][0]",
    "(it.pages, it.price)", "{'a': it.pages, 'b': [it.price]}", "[x for x in it.tags if x.startswith('r')]",
    "sum([1 for m in Member if m.sponsor_id is None])",
    "[b.title for b in sorted(Book, key=lambda b: b.price) if b.pages]",
    "[b.shelf.name for b in [x for x in Book if x.pages > 8]]", "it.title.count('b') + len(it.title.upper())",
    "max([b.pages for b in Book], default=0)", "max((b.pages for b in Book if b.pages > 9999), default=0)",
    "sorted([b.title for b in Book], reverse=True)", "True", "None", "''", "not not amount", "'it.title'", "'self'",
    "'\\'\"\\n'", "f'{{}}'", "it.status == 'kept' or it.holder.loans >= 0",
]  # fmt: skip


@pytest.mark.parametrize("text", SAMPLE)
def test_translation_computes_the_same(text: str) -> None:
    for key in STATE["books"]:
        got, wanted = both(text, key)
        assert got == wanted, key


NUMBERS = st.sampled_from(
    ["it.pages", "it.price", "amount", "3", "0.5", "len(Book)", "it.shelf.floor", "len(it.tags)", "len(it.title)",
     "sum(b.pages for b in Book)", "max(b.price for b in books)", "days_between(today, '2026-12-31')"]
)  # fmt: skip
TEXTS = st.sampled_from(
    ["it.title", "it.status", "it.shelf.name", "'kept'", "it.title.lower()", "today", "f'{it.pages}'", "it.holder.name",
     "min(m.name for m in Member)", "'x'.join(it.tags)"]
)  # fmt: skip


def deeper_numbers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    operators = st.sampled_from(["+", "-", "*", "/", "//", "%"])
    return (
        st.builds("({} {} {})".format, inner, operators, inner)
        | st.builds("(-{})".format, inner)
        | st.builds("abs({})".format, inner)
        | st.builds("({} if {} > {} else {})".format, inner, inner, inner, inner)
        | st.builds("max({}, {})".format, inner, inner)
        | st.builds("sum(b.pages for b in Book if b.pages > {})".format, inner)
        | st.builds("len([b for b in books if b.price < {} and b.pages != it.pages])".format, inner)
    )


ARITHMETIC = st.recursive(NUMBERS, deeper_numbers, max_leaves=6)
CONDITIONS = st.recursive(
    st.builds("{} {} {}".format, ARITHMETIC, st.sampled_from(["<", "<=", ">", ">=", "==", "!="]), ARITHMETIC)
    | st.builds("{} {} {}".format, TEXTS, st.sampled_from(["<", "==", "!=", "in", "not in"]), TEXTS)
    | st.sampled_from(["it.note is None", "it.holder_id is not None", "it.holder_id in Member", "it.note", "it.tags"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from(["and", "or"]), inner)
        | st.builds("(not {})".format, inner)
        | st.builds("any({} for x in Book if x.pages > amount)".format, inner)
        | st.builds("({} if {} else {})".format, inner, inner, inner)
    ),
    max_leaves=5,
)


@settings(max_examples=400, deadline=None)
@given(text=ARITHMETIC | CONDITIONS | TEXTS, key=st.sampled_from(sorted(STATE["books"])), amount=st.integers(-3, 400))
def test_translation_computes_the_same_for_any_combination(text: str, key: str, amount: int) -> None:
    got, wanted = both(text, key, amount)
    assert got == wanted


@settings(max_examples=300, deadline=None)
@given(text=CONDITIONS, key=st.sampled_from(sorted(STATE["books"])), amount=st.integers(-3, 400))
def test_a_negated_condition_is_the_opposite(text: str, key: str, amount: int) -> None:
    source = translate_negated(text, SCOPE)
    compiled = evaluate_with_helpers(f"lambda self, it, books, amount: bool({source})")
    books = list(STATE["books"].values())
    got = outcome(lambda: compiled(View(STATE), STATE["books"][key], books, amount))
    reader = Reference(STATE, it=STATE["books"][key], books=books, amount=amount)
    assert got == outcome(lambda: not reader(text))


PIECES = st.lists(
    st.sampled_from(
        ["{it.title}", "{it.shelf.name}", "{amount}", "{it.price:.2f}", "{len(books)}", "{it.title!r}", " it's ",
         "%s", "{{", "}}",
         "\\", "\n", "“x”", "{', '.join(it.tags)}", "{it.note or amount}", "{amount + 1} {it.pages - 2}", "$"]
    ),
    max_size=5,
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES, key=st.sampled_from(sorted(STATE["books"])))
def test_messages_read_like_f_strings(pieces: list[str], key: str) -> None:
    text = "".join(pieces)
    source = translate_template(text, SCOPE)
    books, book = list(STATE["books"].values()), STATE["books"][key]
    got = evaluate_with_helpers(f"lambda self, it, books, amount: {source}")(View(STATE), book, books, 3)
    if "{" not in text:
        assert got == text
        return
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert got == Reference(STATE, it=book, books=books, amount=3)(f'f"{escaped}"')


@pytest.mark.parametrize(
    "text", ['It is "{it.title}".', "'{it.title}' isn't \"{it.status}\".", "{it.shelf.name}: \"a\" 'b'"]
)
def test_messages_may_hold_quotes(text: str) -> None:
    source = translate_template(text, SCOPE)
    got = evaluate_with_helpers(f"lambda self, it: {source}")(View(STATE), STATE["books"]["BOO-2"])
    book = STATE["books"]["BOO-2"]
    assert got == text.format(it=type("Book", (), {**book, "shelf": type("Shelf", (), STATE["shelves"]["SHE-2"])}))


def test_bodies_assign_create_delete_loop_and_branch() -> None:
    tool = SPEC.tools[0]
    body = """
cheap = [b for b in Book if b.price < limit]
for b in cheap:
    if b.pages > 10:
        b.pages -= 2 if b.note is None else 1
    else:
        b.price += limit / 3 - 1
        delete(b)
extra = new(Shelf, name=f"S{limit}", floor=len(cheap))
book.shelf_id = extra.shelf_id
book.shelf.floor += 1
"""
    action = Procedure(
        steps=(Let(name="limit", value="10"), Guard(that="limit < 11", message="{limit}")),
        body=body,
        returns=(("extra", "extra"), ("left", "len(Book)"), ("cheap", "[b.title for b in cheap]")),
    )
    changed = tool.model_copy(update={"name": "tidy", "action": action, "parameters": tool.parameters[:1]})
    program = build_program(library_spec(tools=(changed,)))
    import copy

    instance = program.build(copy.deepcopy(STATE))
    answer = instance.tidy(book_id="BOO-2")
    assert answer["ok"] and answer["data"]["left"] == 2 and answer["data"]["cheap"] == ["A b", ""]
    state = vars(instance)
    assert set(state["books"]) == {"BOO-1", "BOO-2"} and state["books"]["BOO-1"]["pages"] == 10
    assert state["shelves"]["SHE-0003"] == {"shelf_id": "SHE-0003", "name": "S10", "floor": 3}
    assert state["books"]["BOO-2"]["shelf_id"] == "SHE-0003" and state["counters"]["shelves"] == 3


def test_amounts_are_subtracted_whole() -> None:
    """`x -= a + b` takes both away, whatever kind of expression the amount is."""
    scope = SCOPE.bind(it=Kind("Book"))
    for amount, wanted in (
        ("1 + 2", 6.5), ("1 if amount else 2", 8.5), ("amount and 2", 7.5), ("-1", 10.5), ("amount > 1", 8.5),
        ("not amount", 9.5),
    ):  # fmt: skip
        lines, _ = translate_body(f"it.price -= {amount}", scope, Effects())
        namespace: dict[str, Any] = {"it": {"price": 9.5}, "amount": 3}
        exec("\n".join(lines), namespace)
        assert namespace["it"]["price"] == wanted, amount
