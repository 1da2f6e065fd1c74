"""Names and sentences: what a file calls things becomes identifiers, nouns and plain English.

Every function is pure: the same text gives the same name on any day. Tool names are unique and at most 64
characters long whatever the file does, and do not depend on the order in which operations are read.
"""

from __future__ import annotations

import hashlib
import html
import keyword
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from agentomnia.environment.spec import LOCAL_NAMES, RESERVED_NAMES

MAX_NAME = 64
_DIGEST = 8

_PROCEDURE_NAMES = frozenset("found missing item it r n print none true false".split())
"""Names that this room's procedures use for themselves."""

UNUSABLE = (
    frozenset(keyword.kwlist)
    | frozenset(keyword.softkwlist) - {"type"}
    | RESERVED_NAMES
    | LOCAL_NAMES
    | _PROCEDURE_NAMES
)
"""Names that neither a field nor a parameter can have."""

_ABBREVIATIONS = ("e.g.", "i.e.", "etc.", "vs.", "approx.", "no.", "cf.", "incl.", "resp.", "max.", "min.")
_IRREGULAR = {
    "people": "person", "children": "child", "men": "man", "women": "woman", "indices": "index", "matrices": "matrix",
    "vertices": "vertex", "statuses": "status", "aliases": "alias", "addresses": "address", "buses": "bus",
    "analyses": "analysis", "bases": "base", "cases": "case", "leases": "lease", "purchases": "purchase",
    "databases": "database", "releases": "release", "invoices": "invoice", "movies": "movie", "cookies": "cookie",
    "caches": "cache", "axes": "axis", "criteria": "criterion", "media": "media", "data": "data", "news": "news",
    "series": "series", "courses": "course", "houses": "house", "warehouses": "warehouse", "responses": "response",
    "expenses": "expense", "licenses": "license", "licences": "licence", "phases": "phase", "clauses": "clause",
    "causes": "cause", "uses": "use", "pauses": "pause", "nurses": "nurse", "horses": "horse", "universes": "universe",
    "exercises": "exercise", "enterprises": "enterprise", "premises": "premise", "franchises": "franchise",
    "promises": "promise", "headsets": "headset", "selfies": "selfie", "ties": "tie", "pies": "pie",
}  # fmt: skip

_SAME = frozenset(
    ("analytics", "statistics", "logistics", "physics", "economics", "diagnostics", "basics", "politics", "graphics",
    "atlas",
     "canvas", "bias", "gas", "alias", "texas", "aws", "dns", "sms", "gps", "tls", "https", "cms", "lens",
     "kubernetes", "sales",
     "credentials", "settings", "preferences", "stats", "capabilities", "goods", "always", "css", "pos", "rights",
     "sas")
)  # fmt: skip
"""Nouns that end with an `s` of their own, or have no singular in use."""
_SHORT_PLURALS = frozenset(
    ("menus", "gurus", "apis", "taxis", "wikis", "kpis", "pois", "emojis", "gpus", "cpus", "skus")
)


def words(name: str) -> list[str]:
    """The words of an identifier in lower case: `getUserV2` gives `get user v2`, `Car Wash` gives `car wash`."""
    return list(_words(name))


@lru_cache(maxsize=65536)
def _words(name: str) -> tuple[str, ...]:
    # large files ask for the same names again and again
    plain = unicodedata.normalize("NFKD", name)
    plain = "".join(c for c in plain if not unicodedata.combining(c))
    plain = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", plain)
    plain = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1 \2", plain)
    return tuple(re.findall(r"[a-z0-9]+", plain.lower()))


@lru_cache(maxsize=65536)
def snake(name: str) -> str:
    """The identifier in snake case; empty when it holds no ASCII letter."""
    return re.sub(r"\A[0-9_]+", "", "_".join(words(name)))


def usable(name: str, suffix: str = "value") -> str:
    """A name that a field or a parameter can have: snake case, no keyword, nothing the program uses itself."""
    plain = snake(name)[:MAX_NAME].rstrip("_") or suffix
    return f"{plain}_{suffix}" if plain in UNUSABLE else plain


def class_case(text: str) -> str:
    """The words as a class name: `purchase order` gives `PurchaseOrder`."""
    name = "".join(w[0].upper() + w[1:] for w in words(text))
    name = re.sub(r"\A[0-9]+", "", name) or "Record"
    name = name[0].upper() + name[1:]
    return f"{name}Record" if keyword.iskeyword(name.lower()) or keyword.iskeyword(name) else name[:48]


def singular(word: str) -> str:
    """The singular of an English noun, by the common rules; the last word of several."""
    head, _, last = word.rpartition("_")
    single = _singular_word(last)
    return f"{head}_{single}" if head else single


def _singular_word(word: str) -> str:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 4 or not word.endswith("s") or word.endswith("ss") or word in _SAME:
        return word
    if word.endswith(("us", "is")) and word not in _SHORT_PLURALS:
        return word
    if word.endswith("ies"):
        return word[:-3] + "y"
    if re.search(r"(ss|x|z|ch|sh|us)es\Z", word):
        return word[:-2]
    return word[:-1]


def plural(word: str) -> str:
    """The plural of a snake-case noun."""
    head, _, last = word.rpartition("_")
    many = _plural_word(last)
    return f"{head}_{many}" if head else many


def _plural_word(word: str) -> str:
    if word in ("media", "data", "news", "series"):
        return f"{word}_records"
    if word in ("person", "child"):
        return {"person": "people", "child": "children"}[word]
    if re.search(r"[^aeiou]y\Z", word):
        return word[:-1] + "ies"
    return word + ("es" if re.search(r"(s|x|z|ch|sh)\Z", word) else "s")


def article(noun: str) -> str:
    """The noun with `a` or `an`."""
    vowel = re.match(r"[aeiou]", noun) and not re.match(r"(uni|use|user|usa|one|eu|ut)", noun)
    return f"{'an' if vowel else 'a'} {noun}"


def spoken(name: str) -> str:
    """A snake-case name as people say it."""
    return name.replace("_", " ")


def listed(parts: Iterable[str], last: str = "and") -> str:
    """`a, b and c`."""
    items = list(parts)
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def sentence(text: str, limit: int = 240) -> str:
    """The first sentence of a description, without HTML, Markdown or control characters; empty for none."""
    plain = plain_text(text)
    end = _first_end(plain)
    first = plain[:end].strip()
    if len(first) > limit:
        first = first[: limit - 1].rsplit(" ", 1)[0].rstrip(",;:-( ")
    # a closing quote would run into the quotes of a docstring
    first = first.strip().rstrip(".!?:;,\"'` ")
    return f"{first[0].upper()}{first[1:]}." if first else ""


def plain_text(text: str) -> str:
    """The text on one line, without HTML, Markdown or control characters."""
    plain = re.sub(r"<!--.*?-->|<[A-Za-z/][^<>]*>", " ", html.unescape(text))
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"```.*?```", " ", plain, flags=re.DOTALL)
    plain = re.sub(r"(?m)^\s*(#+|[-*+>]|\d+\.)\s+", "", plain)
    plain = re.sub(r"[*_]{2,}|[`#|\\]+", "", plain)
    plain = "".join(c if unicodedata.category(c)[0] != "C" else " " for c in plain)
    return " ".join(plain.split())


def _first_end(text: str) -> int:
    for match in re.finditer(r"[.!?](?=\s+[^a-z]|\Z)", text):
        if not text[: match.end()].lower().endswith(_ABBREVIATIONS) and match.end() > 12:
            return match.end()
    return len(text)


def tool_names(wanted: Mapping[str, str], prefix: str = "") -> dict[str, str]:
    """Unique tool names.

    Args:
        wanted: what the file calls each operation, by a stable identity of the operation (its method and
            path, or its position); the name may be empty, odd or shared.
        prefix: put before each name; shortened first where both do not fit.

    Returns:
        The tool name of each identity: `[a-z][a-z0-9_]*`, at most 64 characters, no two equal, and the same
        whatever the order of `wanted`.
    """
    plain = {identity: _tool_name(name, identity, snake(prefix)) for identity, name in wanted.items()}
    shared = Counter(plain.values())
    names = {i: n if shared[n] == 1 else _with_digest(n, i) for i, n in plain.items()}
    taken = Counter(names.values())
    # a made name may meet a written one: then the written one gives way as well
    return {i: n if taken[n] == 1 else _with_digest(n, f"{i} again") for i, n in names.items()}


def _tool_name(name: str, identity: str, prefix: str) -> str:
    plain = snake(name) or snake(identity) or "tool"
    if len(plain) > MAX_NAME:
        plain = _with_digest(plain, name or identity)
    if plain in UNUSABLE:
        plain = f"{plain}_record"
    if not prefix:
        return plain
    room = MAX_NAME - len(plain) - 1
    return f"{prefix[:room].rstrip('_')}_{plain}" if room > 1 else plain


def _with_digest(name: str, identity: str) -> str:
    mark = hashlib.sha256(identity.encode()).hexdigest()[:_DIGEST]
    return f"{name[: MAX_NAME - _DIGEST - 1].rstrip('_')}_{mark}"


def free_name(base: str, taken: Iterable[str]) -> str:
    """`base`, or `base_2`, `base_3`, … where it is taken."""
    used = set(taken)
    number, name = 1, base
    while name in used:
        number += 1
        name = f"{base}_{number}"
    return name
