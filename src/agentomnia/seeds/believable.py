"""Fields as attributes: the type a field is stored with, and how believable values of it are made.

What the file writes down (choices, examples) comes first, then what the field's name tells, then its type.
A maker is used only where every value it gives is allowed by the field's limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from agentomnia.environment.spec import Attribute, AttributeType
from agentomnia.seeds.naming import sentence, spoken, usable
from agentomnia.seeds.shape import Shape

_MAX_CHOICES = 60
_LONG_TEXT = 240

_TEXT_NAMES = re.compile(
    r"(\A|_)(description|body|content|contents|notes?|comments?|message|text|bio|summary|details|reason|instructions|"
    r"remarks?|about|abstract|overview|biography|caption|excerpt|markdown|html)\Z"
)
_MOMENT_NAMES = re.compile(r"_at\Z|_datetime\Z|(\A|_)timestamp\Z|(\A|_)date_time\Z")
_DAY_NAMES = re.compile(r"(\A|_)(date|birthday|dob|day)\Z|_on\Z")

_PAST = re.compile(
    r"\A(created|updated|modified|last|published|joined|registered|started|deleted|first|inserted|added)_|(created|"
    r"updated|modified)(_at|_on|_date)?\Z"
)

_TEXT_MAKERS: tuple[tuple[str, str], ...] = (
    (r"(\A|_)e?mail(_address)?\Z", "email"),
    (r"(\A|_)(phone|mobile|fax|telephone|cell)(_number|_no)?\Z", "phone"),
    (r"(\A|_)(first_name|given_name|forename)\Z", "first"),
    (r"(\A|_)(last_name|family_name|surname)\Z", "last"),
    (r"(\A|_)(full_name|real_name|person_name|customer_name|contact_name|author_name|user_name_full|assignee|owner|"
    r"author|reporter|created_by|updated_by|manager|contact|recipient|sender)\Z", "person"),
    (r"(\A|_)(user_?name|login|screen_name|nick(name)?)\Z", "login"),
    (r"(\A|_)(company|company_name|organi[sz]ation|organi[sz]ation_name|employer|vendor|merchant|supplier|"
    r"business_name|legal_name|brand|manufacturer|publisher)\Z", "company"),
    (r"(\A|_)(city|town|municipality)\Z", "city"),
    (r"(\A|_)(street|address|address_?line_?1?|line_?1|street_address|address1)\Z", "address"),
    (r"(\A|_)(zip|zip_code|postal_code|postcode)\Z", 'code("#####")'),
    (r"(\A|_)(url|uri|link|website|homepage|href|web_site|site|endpoint|webhook)\Z|_(url|uri)\Z", "url"),
    (r"(\A|_)(currency|currency_code)\Z", 'pick("EUR", "USD", "GBP", "CHF", "SEK")'),
    (r"(\A|_)(country|country_code)\Z", 'pick("DE", "FR", "IT", "PT", "SE", "NL", "PL")'),
    (r"(\A|_)(language|locale|lang|language_code)\Z", 'pick("en", "de", "fr", "pt", "sv", "it")'),
    (r"(\A|_)(time_?zone|tz)\Z", 'pick("Europe/Lisbon", "Europe/Berlin", "Europe/Warsaw", "Europe/Oslo")'),
    (r"(\A|_)(state|province|region|county)(_code)?\Z", 'pick("North", "South", "East", "West", "Central")'),
    (r"(\A|_)(colou?r)\Z", 'pick("red", "green", "blue", "amber", "violet", "grey")'),
    (r"(\A|_)(ip|ip_address|ipv4)\Z", 'pick("192.0.2.11", "192.0.2.24", "198.51.100.7", "203.0.113.40")'),
    (r"(\A|_)(version)\Z", 'pick("1.0.0", "1.2.0", "1.4.3", "2.0.1", "2.1.0")'),
    (r"(\A|_)(sku|barcode|ean|upc)\Z", 'code("SKU-####-@@")'),
    (r"(\A|_)(number|reference|ref|code|serial|serial_number|tracking_number|external_id|account_number|no)\Z",
    'code("@@-####")'),
    (r"(\A|_)(token|secret|api_?key|password|hash|checksum|fingerprint|signature)\Z", 'code("@@##@@##@@##")'),
    (r"(\A|_)(uuid|guid)\Z", 'code("########-####")'),
    (r"(\A|_)(gender|sex)\Z", 'pick("female", "male", "other")'),
    (r"(\A|_)(mime_?type|content_type|media_type)\Z", 'pick("text/plain", "application/pdf", "image/png", "text/csv")'),
    (r"(\A|_)(file_?name|filename)\Z", 'pick("report.pdf", "notes.txt", "invoice.pdf", "photo.png", "plan.docx", '
    '"data.csv")'),
    (r"(\A|_)(path|file_?path|directory|folder)\Z", "path"),
    (r"(\A|_)(slug|handle|key)\Z", "slug"),
)  # fmt: skip

_PEOPLE = frozenset(
    "user customer member person contact client employee owner author patient student teacher driver account_holder "
    "guest "
    "passenger participant attendee subscriber staff agent lead candidate applicant player doctor tenant borrower "
    "profile "
    "recipient worker technician".split()
)
_COMPANIES = frozenset("company organization organisation vendor supplier merchant brand store shop business tenant "
                       "manufacturer publisher partner account".split())  # fmt: skip

_VOCABULARIES: dict[str, str] = {
    "login": "amara|bela.k|carmen|chidi_e|dmitri|elena99|farah|felix.h|grace|hana_i|ines|jamal|kofi|lars_n|leila|"
    "malik|mei.l|"
    "nadia|noor|omar_h|petra|priya|rafael|rosa|samir|tessa|tomas|viktor|wanda|zoe",
    "first": "Amara|Bela|Carmen|Chidi|Dmitri|Elena|Farah|Felix|Grace|Hana|Ines|Jamal|Kofi|Lars|Leila|Malik|Mei|Nadia|"
    "Noor|Omar|"
    "Petra|Priya|Rafael|Rosa|Samir|Tessa|Tomas|Viktor|Wanda|Zoe",
    "last": "Abebe|Alvarez|Becker|Bianchi|Castro|Cohen|Dubois|Eriksen|Fischer|Garcia|Haddad|Ibrahim|Ito|Jensen|Kaur|"
    "Kim|Kowalski|"
    "Larsen|Moreau|Novak|Okafor|Patel|Reyes|Rossi|Santos|Silva|Tanaka|Vargas|Weber|Zhang",
    "url": "https://example.org/amber|https://example.org/birch|https://example.org/cedar|https://example.org/delta|"
    "https://example.org/ember|https://example.org/fjord|https://example.org/grove|https://example.org/harbour|"
    "https://example.org/inlet|https://example.org/juniper|https://example.org/kelp|https://example.org/lantern",
    "path": "/projects/atlas/readme.md|/projects/atlas/plan.md|/projects/beacon/notes.txt|/reports/2026/january.csv|"
    "/reports/2026/february.csv|/reports/summary.md|/home/notes/ideas.txt|/home/notes/meeting.md|/drafts/letter.txt|"
    "/drafts/outline.md|/archive/2025/report.pdf|/archive/2025/budget.csv|/shared/contacts.csv|/shared/glossary.md|"
    "/templates/invoice.html|/templates/email.html|/data/samples.json|/data/readings.csv|/config/settings.toml|"
    "/config/rules.yaml",
    "slug": "north-quay|silver-birch|blue-harbor|green-meadow|copper-lane|amber-field|cedar-point|delta-works|"
    "east-gate|fern-hill|"
    "granite-ridge|harvest-home|iron-bridge|jade-garden|lantern-row|maple-court|oak-street|pine-hollow|quartz-bay|"
    "river-walk|"
    "saffron-hall|stone-mill|tide-pool|willow-bank",
    "title": "Spring launch|Quarterly review|Harbour renovation|Night shift cover|Customer survey|Stock count|Annual "
    "audit|"
    "Team handover|Website refresh|Supplier change|Safety check|Budget draft|Summer campaign|Data clean-up|Office move|"
    "Training day|Price update|Partner visit|Winter schedule|Release notes|Welcome pack|Route planning|Energy report|"
    "Pilot study",
    "name": "North Quay|Silver Birch|Blue Harbor|Green Meadow|Copper Lane|Amber Field|Cedar Point|Delta Works|East "
    "Gate|Fern Hill|"
    "Granite Ridge|Harvest Home|Iron Bridge|Jade Garden|Lantern Row|Maple Court|Oak Street|Pine Hollow|Quartz Bay|"
    "River Walk|"
    "Saffron Hall|Stone Mill|Tide Pool|Willow Bank",
    "prose": "Checked and found in order.|Needs a second look next week.|Agreed with everyone involved.|Waiting for "
    "an answer from the "
    "supplier.|Replaces the earlier version.|Asked for by the regional office.|To be discussed at the next meeting.|"
    "Nothing "
    "unusual so far.|Moved from the old system.|Please handle with care.|Covers the first half of the year.|Reviewed "
    "by two people.",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """How a field is stored: its type, and what a list holds."""

    type: AttributeType
    items: Literal["string", "integer", "number", "object"] = "string"


def stored_as(name: str, shape: Shape) -> Stored:
    """The type that a field of that name and shape is stored with."""
    if shape.kind == "array":
        inner = shape.items.kind if shape.items is not None else "any"
        kinds: dict[str, Literal["string", "integer", "number", "object"]] = {
            "integer": "integer", "number": "number", "object": "object", "array": "object",
        }  # fmt: skip
        return Stored("list", kinds.get(inner, "string"))
    if shape.kind in ("integer", "number", "boolean", "object"):
        return Stored(shape.kind)
    if choices_of(shape):
        return Stored("enum")
    if shape.format in ("date", "date-time"):
        return Stored("date" if shape.format == "date" else "datetime")
    return Stored(_text_type(name, shape))


def _text_type(name: str, shape: Shape) -> AttributeType:
    if not shape.format and not shape.pattern and not shape.max_length and not shape.choices:
        sample = shape.examples[0] if shape.examples else None
        if _MOMENT_NAMES.search(name) and not isinstance(sample, int | float):
            return "datetime"
        if isinstance(sample, str) and re.fullmatch(r"\d{4}-\d\d-\d\d", sample) and _DAY_NAMES.search(name):
            return "date"
    if _TEXT_NAMES.search(name) or (shape.max_length or 0) > _LONG_TEXT * 2:
        return "text"
    return "string"


def choices_of(shape: Shape) -> tuple[str, ...]:
    """The choices of a text that can be told apart and spoken; none where there are too many."""
    if shape.kind not in ("string", "any"):
        return ()
    found = tuple(dict.fromkeys(str(c) for c in shape.choices if isinstance(c, str) and c.strip() and len(c) <= 80))
    return found if 1 <= len(found) <= _MAX_CHOICES else ()


def attribute_of(name: str, shape: Shape, *, owner: str = "", nullable: bool = False, default: Any = None) -> Attribute:
    """The attribute for a field that is no reference.

    Args:
        name: the field.
        shape: what the file says of it.
        owner: the noun of the entity, which tells names of people from names of things.
        nullable: whether a record may lack it.
        default: what a new record has where nothing is given.
    """
    stored = stored_as(name, shape)
    low, high = _limits(shape) if stored.type in ("integer", "number") else (None, None)
    plain = Attribute(
        name=name,
        type=stored.type,
        description=sentence(shape.description),
        nullable=nullable,
        default=default,
        choices=choices_of(shape) if stored.type == "enum" else (),
        items=stored.items,
        minimum=low,
        maximum=high,
    )
    return plain.model_copy(update=_making(plain, shape, owner))


def _limits(shape: Shape) -> tuple[float | None, float | None]:
    """Inclusive limits; an exclusive one of a number is kept as the parameter's own keyword."""
    step = 1 if shape.kind == "integer" else 0
    low = shape.minimum if shape.minimum is not None else _shifted(shape.exclusive_minimum, step)
    high = shape.maximum if shape.maximum is not None else _shifted(shape.exclusive_maximum, -step)
    # limits of 32-bit and 64-bit numbers say nothing of the field
    low = None if low is not None and low <= -(2**31) else low
    high = None if high is not None and high >= 2**31 - 1 else high
    return (low, high) if low is None or high is None or low <= high else (None, None)


def _shifted(limit: float | None, step: int) -> float | None:
    return None if limit is None else limit + step


def parameter_schema(attribute: Attribute, shape: Shape) -> dict[str, Any]:
    """JSON Schema of an argument that sets the attribute: the file's own limits inside those of the attribute."""
    match attribute.type:
        case "enum":
            own = [c for c in choices_of(shape) if c in attribute.choices]
            return {"type": "string", "enum": own or list(attribute.choices)}
        case "integer" | "number":
            return {"type": attribute.type, **_number_keywords(attribute, shape)}
        case "string" | "text":
            return {"type": "string", **_length_keywords(attribute, shape)}
        case "date":
            return {"type": "string", "format": "date"}
        case "datetime":
            return {"type": "string", "format": "date-time"}
        case "reference":
            return {"type": "string", "minLength": 1, "maxLength": 64}
        case "list":
            items = simple_schema(shape.items) if shape.items is not None else {}
            return {"type": "array", "items": items if items else {"type": attribute.items}}
        case "object":
            return simple_schema(shape) if shape.kind == "object" else {"type": "object"}
        case _:
            return {"type": "boolean"}


def simple_schema(shape: Shape, depth: int = 0) -> dict[str, Any]:
    """JSON Schema of a nested value, without what only a person could fill in (patterns, odd formats)."""
    if shape.kind == "any":
        return {"type": "string"}
    schema: dict[str, Any] = {"type": shape.kind}
    if shape.kind == "object":
        inner = {n: simple_schema(s, depth + 1) for n, s in shape.properties.items() if depth < 2 and not s.read_only}
        required = [n for n in inner if n in shape.required]
        schema |= {"properties": inner} if inner else {}
        schema |= {"required": required} if required else {}
    elif shape.kind == "array":
        schema["items"] = simple_schema(shape.items, depth + 1) if shape.items is not None else {"type": "string"}
    elif shape.choices and shape.kind in ("string", "integer"):
        schema["enum"] = list(shape.choices)
    elif shape.kind == "string" and shape.format in ("date", "date-time"):
        schema["format"] = shape.format
    return schema


def _number_keywords(attribute: Attribute, shape: Shape) -> dict[str, Any]:
    whole = [c for c in shape.choices if isinstance(c, int) and not isinstance(c, bool)]
    if whole and attribute.type == "integer" and attribute.maker and attribute.maker.startswith("pick"):
        return {"enum": whole}
    low, high = _limits(shape)
    low = _inside(low, attribute.minimum, max)
    high = _inside(high, attribute.maximum, min)
    keywords: dict[str, Any] = {}
    if shape.exclusive_minimum is not None and shape.kind == "number" and low == shape.exclusive_minimum:
        keywords["exclusiveMinimum"] = _plain_number(shape.exclusive_minimum)
    elif low is not None:
        keywords["minimum"] = _plain_number(low)
    if shape.exclusive_maximum is not None and shape.kind == "number" and high == shape.exclusive_maximum:
        keywords["exclusiveMaximum"] = _plain_number(shape.exclusive_maximum)
    elif high is not None:
        keywords["maximum"] = _plain_number(high)
    return keywords


def _inside(own: float | None, stored: float | None, choose: Any) -> float | None:
    if own is None or stored is None:
        return stored if own is None else own
    chosen: float = choose(own, stored)
    return chosen


def _plain_number(number: float) -> float | int:
    return int(number) if float(number).is_integer() else number


def _length_keywords(attribute: Attribute, shape: Shape) -> dict[str, Any]:
    longest = shape.max_length or (4000 if attribute.type == "text" else 200)
    return {"minLength": max(1, min(shape.min_length or 1, longest)), "maxLength": longest}


def _making(attribute: Attribute, shape: Shape, owner: str) -> dict[str, Any]:
    """The maker or the vocabulary of an attribute, as an update of it."""
    match attribute.type:
        case "string" | "text":
            return _text_making(attribute, shape, owner)
        case "integer" | "number":
            return _number_making(attribute, shape)
        case "date" | "datetime":
            maker = "day" if attribute.type == "date" else "slot"
            return {"maker": f"{maker}(-60, -1)" if _PAST.search(attribute.name) else f"{maker}(-10, 40)"}
        case "list":
            return _list_making(attribute, shape)
        case "object":
            return (
                {"maker": f"pick({', '.join(repr(_example(shape, n)) for n in range(4))})"} if shape.properties else {}
            )
        case _:
            return {}


def _text_making(attribute: Attribute, shape: Shape, owner: str) -> dict[str, Any]:
    written = tuple(dict.fromkeys(str(e) for e in shape.examples if _is_telling(e) and _fits(str(e), shape)))
    if len(written) > 2 or (shape.pattern and written):
        return {"vocabulary": written}
    maker = _maker_of(attribute, owner)
    if maker in _VOCABULARIES:
        fitting = tuple(v for v in (*written, *_VOCABULARIES[maker].split("|")) if _fits(v, shape))
        return {"vocabulary": tuple(dict.fromkeys(fitting))} if len(fitting) > 4 else _code_making(shape)
    if (shape.max_length or 99) < 40:
        return {"maker": maker} if _picks_fit(maker, shape) else _code_making(shape)
    return {"maker": maker}


def _is_telling(value: Any) -> bool:
    return isinstance(value, str) and value.strip().lower() not in ("", "string", "text", "null", "none", "example")


def _picks_fit(maker: str, shape: Shape) -> bool:
    longest = {"person": 24, "company": 28, "city": 12, "address": 22, "phone": 16, "email": 34}.get(maker)
    if longest is not None:
        return longest <= (shape.max_length or 99)
    return all(_fits(v, shape) for v in re.findall(r'"([^"]*)"', maker))


def _code_making(shape: Shape) -> dict[str, Any]:
    length = max(shape.min_length or 1, min(shape.max_length or 8, 8))
    return {"maker": f'code("{("@@####" * length)[:length]}")'}


def _fits(text: str, shape: Shape) -> bool:
    low, high = shape.min_length or 1, shape.max_length or 4000
    return low <= len(text) <= high


def _maker_of(attribute: Attribute, owner: str) -> str:
    if attribute.type == "text":
        return "prose"
    for pattern, maker in _TEXT_MAKERS:
        if re.search(pattern, attribute.name):
            return maker
    if re.search(r"(\A|_)(name|display_name|label)\Z", attribute.name):
        noun = owner.rpartition("_")[2]
        if noun in _PEOPLE and attribute.name != "label":
            return "person"
        return "company" if noun in _COMPANIES else "name"
    if re.search(r"(\A|_)(title|subject|headline|topic)\Z", attribute.name):
        return "title"
    return 'code("@@-####")' if attribute.name.endswith(("_id", "_ref")) else "slug"


def _number_making(attribute: Attribute, shape: Shape) -> dict[str, Any]:
    whole = [c for c in shape.choices if isinstance(c, int) and not isinstance(c, bool)]
    if whole and attribute.type == "integer":
        return {"maker": f"pick({', '.join(map(str, whole[:40]))})", "minimum": min(whole), "maximum": max(whole)}
    low, high = attribute.minimum, attribute.maximum
    start, end = _usual_range(attribute.name)
    if low is not None and not start <= low <= end:
        start, end = low, low + (end - start)
    elif low is not None:
        start = max(start, low)
    if high is not None:
        end = min(end, high)
        start = min(start, end)
    if shape.exclusive_minimum is not None and start <= shape.exclusive_minimum:
        start = min(end, shape.exclusive_minimum + (1 if attribute.type == "integer" else 0.5))
    if attribute.type == "integer":
        return {"maker": f"int({int(start)}, {int(max(start, end))})"}
    return {"maker": f"money({float(start)}, {float(max(start, end))}, {0.5 if end - start >= 5 else 0.05})"}


def _usual_range(name: str) -> tuple[float, float]:
    for pattern, low, high in (
        (r"(\A|_)(price|amount|total|subtotal|cost|fee|balance|rate|salary|budget|revenue|tax|value)\Z", 5, 250),
        (r"(\A|_)(lat|latitude)\Z", 36, 60),
        (r"(\A|_)(lng|lon|long|longitude)\Z", -9, 25),
        (r"(\A|_)(percent|percentage|progress|score|discount)\Z", 0, 100),
        (r"(\A|_)(rating|stars|priority|severity|level|rank)\Z", 1, 5),
        (r"(\A|_)(year)\Z", 2015, 2026),
        (r"(\A|_)(age)\Z", 18, 80),
        (r"(\A|_)(size|bytes|file_size|length)\Z", 100, 9000),
        (r"(\A|_)(duration|minutes|seconds|timeout|ttl|interval)\Z", 5, 240),
        (r"(\A|_)(quantity|qty|count|stock|seats|capacity|size)\Z", 1, 60),
    ):
        if re.search(pattern, name):
            return low, high
    return 1, 100


def _list_making(attribute: Attribute, shape: Shape) -> dict[str, Any]:
    inner = shape.items
    if inner is None or attribute.items == "string":
        choices = choices_of(inner) if inner is not None else ()
        return {"vocabulary": choices or tuple(_VOCABULARIES["slug"].split("|")[:12])}
    return {"maker": f"pick({', '.join(repr([_example(inner, n), _example(inner, n + 4)]) for n in range(4))})"}


def _example(shape: Shape, number: int, name: str = "", depth: int = 0) -> Any:
    """The `number`-th believable value of a nested shape: plain, small, always the same."""
    match shape.kind:
        case "object":
            inner = {n: s for n, s in shape.properties.items() if not s.read_only and depth < 2}
            return {n: _example(s, number, usable(n), depth + 1) for n, s in list(inner.items())[:12]}
        case "array":
            return [_example(shape.items, number, name, depth + 1)] if shape.items is not None else []
        case "boolean":
            return number % 2 == 0
        case "integer" | "number":
            low, high = _limits(shape)
            whole = [c for c in shape.choices if isinstance(c, int)]
            start = low if low is not None else min(1.0, high if high is not None else 1.0)
            value = start + (number * 7 if high is None or start + number * 7 <= high else 0)
            return whole[number % len(whole)] if whole else int(value) if shape.kind == "integer" else float(value)
        case _:
            return _example_text(shape, number, name)


def _example_text(shape: Shape, number: int, name: str) -> str:
    if shape.choices:
        return str(shape.choices[number % len(shape.choices)])
    if shape.format in ("date", "date-time"):
        return f"2026-03-{10 + number:02d}" + ("T10:00" if shape.format == "date-time" else "")
    maker = _maker_of(Attribute(name=name or "value", type="string"), "")
    pool = _VOCABULARIES.get(maker) or _VOCABULARIES["slug"]
    values = pool.split("|")
    if maker.startswith("pick"):
        values = re.findall(r'"([^"]*)"', maker)
    text = values[number % len(values)]
    return text[: shape.max_length] if shape.max_length else text


def label_of(attributes: tuple[Attribute, ...]) -> str | None:
    """The field that people use as a record's name."""
    named = {a.name for a in attributes if a.type == "string" and a.target is None}
    for name in ("name", "title", "display_name", "full_name", "user_name", "username", "login", "subject", "label",
                 "friendly_name", "first_name", "email", "code", "number", "reference", "slug", "key", "path",
                 "sku"):  # fmt: skip
        if name in named:
            return name
    return next((a.name for a in attributes if a.name in named and a.name.endswith(("_name", "_title"))), None)


def described(attribute: Attribute, fallback: str = "") -> str:
    """What an argument that carries the attribute means, in a sentence."""
    text = attribute.description or fallback or spoken(attribute.name)
    return text if text.endswith((".", "?", "!")) else f"{text[0].upper()}{text[1:]}."
