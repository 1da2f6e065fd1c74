"""Believable values: how the builtin author fills the fields of an initial record.

A maker is written on a card as a call, e.g. `person`, `money(10, 90, 5)`, `day(-10, 20)`, `code("INV-####")`.
Values depend on the generator handed in and on nothing else, so the same seed gives the same records.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from datetime import date, datetime, timedelta
from functools import lru_cache
from random import Random
from typing import Any

from agentomnia.environment.sampling import sample_schema
from agentomnia.environment.spec import Attribute, Parameter
from agentomnia.errors import CardError

_FIRST = (
    "Amara Anita Bela Carmen Chen Chidi Clara Dmitri Elena Emeka Farah Felix Grace Hana Hugo Ines Ivan Jamal Jana "
    "Joana Kofi Lars Leila Liam Lucia Magnus Malik Marta Mei Milan Nadia Nils Noor Olga Omar Paula Petra Priya Rafael "
    "Rosa Samir Sofia Stefan Tariq Tessa Tomas Uma Viktor Wanda Yara Yusuf Zoe"
).split()
_LAST = (
    "Abebe Adeyemi Alvarez Andersen Becker Bianchi Castro Cohen Costa Dubois Eriksen Farouk Fischer Fontaine Garcia "
    "Haddad Hoffman Ibrahim Ito Jensen Kaur Kim Kowalski Kumar Larsen Lindgren Lopez Marino Mbeki Meyer Moreau "
    "Nakamura Novak Okafor Olsen Ortega Patel Pereira Petrov Rahman Reyes Romano Rossi Santos Schmidt Silva "
    "Sorensen Tanaka Thompson Vargas Weber Yilmaz Zhang"
).split()
_CITIES = (
    "Aarhus Antwerp Bergen Bilbao Bologna Brno Cork Dresden Eindhoven Faro Ghent Graz Haifa Izmir Kaunas Leipzig Lille "
    "Linz Lyon Malaga Malmo Nantes Odense Oulu Porto Riga Rotterdam Salzburg Split Tampere Tartu Torino Turku Utrecht "
    "Vigo Zagreb"
).split()
_STREETS = (
    "Alder Street|Baker Lane|Bridge Road|Canal Street|Castle Row|Cedar Avenue|Chapel Street|Church Lane|Elm Road|"
    "Ferry Road|Garden Street|Harbour Road|High Street|Hill Road|Linden Avenue|Market Square|Meadow Lane|Mill Lane|"
    "North Quay|Oak Avenue|Orchard Street|Park Road|Queen Street|River Walk|School Lane|Spring Street|Station Road|"
    "Tower Street|Victoria Road|Willow Lane"
).split("|")
_COMPANY_HEADS = (
    "Alpine|Amber|Anchor|Argent|Atlas|Aurora|Beacon|Birch|Blue Harbor|Bright Canyon|Cedar|"
    "Cobalt|Copper|Crest|Delta|Ember|Fjord|Granite|Green Meadow|Harvest|Horizon|Indigo|"
    "Juniper|Kestrel|Lantern|Maple|Meridian|Northwind|Oakridge|Orion|Pioneer|Quartz|Redwood|"
    "Riverside|Saffron|Sierra|Silver Birch|Solstice|Summit|Tidewater|Vantage|Willow"
).split("|")
_COMPANY_TAILS = "Group Works Partners Systems Trading Supply Studio Logistics Foods Labs Services Holdings".split()
_WORDS = "amber birch cedar delta ember flint grove heath inlet jade kelp lumen moss north opal pine quill reed".split()

Context = str
"""The clock of the environment, `YYYY-MM-DDTHH:MM`."""


def make_value(attribute: Attribute, clock: Context, rng: Random) -> Any:
    """A believable value of an attribute that is not a reference.

    Raises:
        CardError: the attribute's maker is not one of `MAKERS`.
    """
    if attribute.vocabulary:
        return _listed(attribute, rng, attribute.vocabulary)
    if attribute.maker is not None:
        return _typed(attribute, call_maker(attribute.maker, clock, rng))
    return _typed(attribute, _plain(attribute, clock, rng))


def make_argument(parameter: Parameter, carried: Attribute | None, clock: Context, rng: Random) -> Any:
    """A believable value of an argument: its own maker, else that of the field it carries, else by schema."""
    if parameter.vocabulary:
        return rng.choice(parameter.vocabulary)
    if parameter.maker is not None:
        return call_maker(parameter.maker, clock, rng)
    if carried is not None and carried.type != "enum":
        return make_value(carried, clock, rng)
    return sample_schema(parameter.json_schema, clock, rng)


def _listed(attribute: Attribute, rng: Random, words: tuple[str, ...]) -> Any:
    if attribute.type == "list":
        return rng.sample(words, rng.randint(1, min(3, len(words))))
    return rng.choice(words)


def _typed(attribute: Attribute, value: Any) -> Any:
    if attribute.type == "number":
        return float(value)
    return value


def _plain(attribute: Attribute, clock: Context, rng: Random) -> Any:
    low, high = attribute.minimum, attribute.maximum
    match attribute.type:
        case "enum":
            return rng.choice(attribute.choices)
        case "boolean":
            return rng.random() < 0.5
        case "integer":
            start = int(low if low is not None else 1)
            return _stepped(rng, start, int(high if high is not None else start + 20), int(attribute.step or 1))
        case "number":
            start_at = low if low is not None else 1.0
            return _money(clock, rng, start_at, high if high is not None else start_at + 200, attribute.step or 0.5)
        case "date":
            return _day(clock, rng, -20, 30)
        case "datetime":
            return _slot(clock, rng, -10, 20)
        case "list":
            return [_item(attribute, rng) for _ in range(rng.randint(1, 3))]
        case "object":
            return {}
        case _:
            return " ".join(rng.sample(_WORDS, 2))


def _item(attribute: Attribute, rng: Random) -> Any:
    """One item of a list without a maker."""
    return {"integer": rng.randint(1, 20), "number": rng.randint(2, 40) / 2, "object": {}}.get(
        attribute.items, rng.choice(_WORDS)
    )


def _stepped(rng: Random, low: int, high: int, step: int) -> int:
    return low + step * rng.randint(0, max(0, (high - low) // step))


def _person(_: Context, rng: Random) -> str:
    return f"{rng.choice(_FIRST)} {rng.choice(_LAST)}"


def _company(_: Context, rng: Random) -> str:
    return f"{rng.choice(_COMPANY_HEADS)} {rng.choice(_COMPANY_TAILS)}"


def _city(_: Context, rng: Random) -> str:
    return rng.choice(_CITIES)


def _address(_: Context, rng: Random) -> str:
    return f"{rng.randint(1, 180)} {rng.choice(_STREETS)}"


def _phone(_: Context, rng: Random) -> str:
    return f"+00 555 {rng.randint(100, 999)} {rng.randint(1000, 9999)}"


def _email(_: Context, rng: Random) -> str:
    return f"{rng.choice(_FIRST).lower()}.{rng.choice(_LAST).lower()}@example.org"


def _code(_: Context, rng: Random, pattern: str) -> str:
    letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
    drawn = {"#": lambda: str(rng.randint(0, 9)), "@": lambda: rng.choice(letters)}
    return "".join(drawn[c]() if c in drawn else c for c in pattern)


def _int(_: Context, rng: Random, low: int, high: int, step: int = 1) -> int:
    return _stepped(rng, low, high, step)


def _money(_: Context, rng: Random, low: float, high: float, step: float = 0.5) -> float:
    return round(low + step * rng.randint(0, max(0, int((high - low) / step))), 2)


def _day(clock: Context, rng: Random, first: int, last: int) -> str:
    return (date.fromisoformat(clock[:10]) + timedelta(days=rng.randint(first, last))).isoformat()


def _slot(clock: Context, rng: Random, first: int, last: int, open_hour: int = 8, close_hour: int = 18) -> str:
    day = date.fromisoformat(clock[:10]) + timedelta(days=rng.randint(first, last))
    minutes = 30 * rng.randint(open_hour * 2, close_hour * 2 - 1)
    moment = datetime(day.year, day.month, day.day) + timedelta(minutes=minutes)
    return moment.isoformat(timespec="minutes")


def _pick(_: Context, rng: Random, *values: Any) -> Any:
    return copy.deepcopy(rng.choice(values))


def _words(_: Context, rng: Random, pool: str, low: int = 1, high: int = 3) -> list[str]:
    choices = pool.split("|")
    return rng.sample(choices, rng.randint(low, min(high, len(choices))))


def _chance(_: Context, rng: Random, share: float) -> bool:
    return rng.random() < share


MAKERS: dict[str, Callable[..., Any]] = {
    "person": _person,
    "company": _company,
    "city": _city,
    "address": _address,
    "phone": _phone,
    "email": _email,
    "code": _code,
    "int": _int,
    "money": _money,
    "day": _day,
    "slot": _slot,
    "pick": _pick,
    "words": _words,
    "chance": _chance,
}


@lru_cache(maxsize=4096)
def parse_maker(text: str) -> tuple[str, tuple[Any, ...]]:
    """The name and arguments of a maker.

    Raises:
        CardError: the text is not a maker.
    """
    try:
        node = ast.parse(text, mode="eval").body
    except SyntaxError:
        raise CardError(f"maker {text!r} is not a call; write e.g. money(10, 90, 5)") from None
    name = node.func if isinstance(node, ast.Call) else node
    if not isinstance(name, ast.Name) or name.id not in MAKERS:
        raise CardError(f"there is no maker {text!r}; use one of {', '.join(MAKERS)}")
    if not isinstance(node, ast.Call):
        return name.id, ()
    try:
        return name.id, tuple(ast.literal_eval(a) for a in node.args)
    except ValueError:
        raise CardError(f"maker {text!r}: arguments are plain numbers and strings") from None


def call_maker(text: str, clock: Context, rng: Random) -> Any:
    """The value of a maker.

    Raises:
        CardError: the text is not a maker, or its arguments do not fit.
    """
    name, arguments = parse_maker(text)
    try:
        return MAKERS[name](clock, rng, *arguments)
    except (TypeError, ValueError, IndexError, ArithmeticError) as error:
        raise CardError(f"maker {text!r}: {error}; see docs/cards.md") from None
