"""Values in a person's words, and back: what a query says, an agent must be able to compute an argument from.

`say` and `unsay` are inverse for everything a query may state; the task gate uses that as its proof that
an argument is derivable from the query.
"""

from __future__ import annotations

import re
from datetime import date, datetime
from typing import Any

_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_DATE = re.compile(
    rf"({'|'.join(WEEKDAYS)}) (\d+) ({'|'.join(_MONTHS)})(?: (\d{{4}}))?(?: at (\d\d:\d\d))?\Z", re.ASCII
)


def say(value: Any, kind: str, clock: str, unit: str = "") -> str:
    """A value as a person writes it.

    Args:
        value: a JSON value.
        kind: the attribute type: `date`, `datetime`, `enum`, `number`, …
        clock: the environment's clock; dates of its year are said without the year.
        unit: said after numbers.
    """
    if kind in ("date", "datetime"):
        return _say_date(str(value), clock)
    if kind == "enum":
        return say_choice(str(value))
    if kind == "boolean":
        return "yes" if value else "no"
    if kind == "list":
        return say_list([str(v) for v in value])
    if kind == "object":
        return ""
    if isinstance(value, int | float):
        return f"{say_number(value)} {_unit_of(value, unit)}".strip()
    return str(value)


_SINGULAR = {"people": "person", "pieces": "piece", "times": "time"}


def _unit_of(value: float, unit: str) -> str:
    """One night, two nights."""
    if value != 1 or not unit.islower():
        return unit
    return _SINGULAR.get(unit, unit.removesuffix("s"))


def say_number(value: float) -> str:
    """A number without needless zeros."""
    if float(value).is_integer():
        return str(int(value))
    return f"{value:.2f}" if round(value, 2) == value else repr(value)


def say_choice(value: str) -> str:
    """`no_show` as people write it."""
    return value.replace("_", " ")


def say_list(words: list[str]) -> str:
    """Words joined as in a sentence."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1] if words else ""


def _say_date(text: str, clock: str) -> str:
    day = date.fromisoformat(text[:10])
    words = f"{WEEKDAYS[day.weekday()]} {day.day} {_MONTHS[day.month - 1]}"
    if day.year != int(clock[:4]):
        words += f" {day.year:04d}"
    return f"{words} at {text[11:16]}" if len(text) > 10 else words


def unsay(text: str, kind: str, clock: str, unit: str = "") -> Any:
    """The value that `say` said, or `None` where the text says no value of the kind."""
    if kind in ("date", "datetime"):
        return _unsay_date(text, clock)
    if kind == "enum":
        return text.replace(" ", "_")
    if kind == "boolean":
        return {"yes": True, "no": False}.get(text)
    if kind == "list":
        return re.split(r", | and ", text)
    if kind in ("integer", "number"):
        number = text.removesuffix(unit).removesuffix(_unit_of(1, unit)).strip() if unit else text
        try:
            return int(number) if kind == "integer" else float(number)
        except ValueError:
            return None
    return text


def _unsay_date(text: str, clock: str) -> str | None:
    found = _DATE.match(text)
    if found is None:
        return None
    weekday, number, month, year, time = found.groups()
    try:
        day = date(int(year or clock[:4]), _MONTHS.index(month) + 1, int(number))
        moment = datetime.fromisoformat(f"{day}T{time or '00:00'}")
    except ValueError:
        return None
    if WEEKDAYS[day.weekday()] != weekday:
        return None
    return moment.isoformat(timespec="minutes") if time else day.isoformat()


def moment_in_words(clock: str) -> str:
    """The clock as an agent is told it."""
    moment = datetime.fromisoformat(clock)
    return f"{WEEKDAYS[moment.weekday()]} {moment.day} {_MONTHS[moment.month - 1]} {moment.year}, {moment:%H:%M}"


def same_value(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same for derivation: `25` and `25.0` are."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, int | float) and isinstance(right, int | float):
        return abs(left - right) < 0.005
    return bool(left == right)
