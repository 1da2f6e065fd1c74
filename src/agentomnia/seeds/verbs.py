"""What the words of an operation's name say it does: `create_issue`, `issues.list`, `AcceptDomainTransfer`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, get_args

from agentomnia.seeds.naming import singular, words

Deed = Literal["get", "list", "create", "update", "delete", "move", "save", "count"]
"""`move` sets a status or a flag; `save` creates or, where the record exists, updates."""

DEEDS: frozenset[Deed] = frozenset(get_args(Deed))
READS: frozenset[Deed] = frozenset(("get", "list", "count"))

_DEEDS: dict[str, Deed] = {
    **dict.fromkeys(("get", "read", "retrieve", "fetch", "show", "describe", "view", "lookup", "find", "load", "head"),
    "get"),
    **dict.fromkeys(("list", "search", "query", "browse", "filter", "index", "ls"), "list"),
    **dict.fromkeys(("create", "add", "new", "insert", "post", "register", "make", "record", "log", "book", "place",
                     "schedule", "open", "send", "submit", "issue", "upload", "provision", "allocate", "request"),
                     "create"),
    **dict.fromkeys(("update", "edit", "modify", "patch", "change", "set", "rename", "replace", "assign", "adjust",
                     "configure"), "update"),
    **dict.fromkeys(("delete", "remove", "destroy", "drop", "erase", "unregister", "rm"), "delete"),
    **dict.fromkeys(("put", "write", "upsert", "save", "store"), "save"),
    **dict.fromkeys(("count",), "count"),
}  # fmt: skip

_STATES: dict[str, tuple[str, ...]] = {
    "accept": ("accepted",), "acknowledge": ("acknowledged",), "activate": ("active", "activated", "enabled"),
    "approve": ("approved",), "archive": ("archived",), "assign": ("assigned",), "ban": ("banned",),
    "block": ("blocked",), "cancel": ("cancelled", "canceled", "cancelling"), "capture": ("captured", "succeeded"),
    "checkin": ("checked_in", "returned"), "checkout": ("checked_out",), "close": ("closed",),
    "complete": ("completed", "complete", "done", "finished"), "confirm": ("confirmed",),
    "deactivate": ("inactive", "deactivated", "disabled"), "decline": ("declined", "rejected"),
    "deliver": ("delivered",), "deny": ("denied", "rejected"), "deploy": ("deployed",), "disable": ("disabled",
    "inactive"),
    "dismiss": ("dismissed",), "enable": ("enabled", "active"), "end": ("ended", "finished"), "expire": ("expired",),
    "finalize": ("finalized", "open"), "finish": ("finished", "completed", "done"), "freeze": ("frozen",),
    "fulfill": ("fulfilled",), "hide": ("hidden",), "hold": ("on_hold", "held"), "ignore": ("ignored",),
    "launch": ("launched", "running"), "lock": ("locked",), "merge": ("merged",), "mute": ("muted",),
    "open": ("open", "opened"), "pause": ("paused",), "pay": ("paid",), "pin": ("pinned",), "post": ("posted",),
    "publish": ("published", "public", "live"), "reactivate": ("active",), "read": ("read",), "refund": ("refunded",),
    "reject": ("rejected", "declined"), "release": ("released",), "remove": ("removed",), "renew": ("renewed",
    "active"),
    "reopen": ("open", "reopened", "opened"), "resolve": ("resolved",), "restore": ("active", "restored"),
    "resume": ("active", "running", "resumed", "started"), "return": ("returned",), "revoke": ("revoked",),
    "run": ("running",), "schedule": ("scheduled",), "send": ("sent",), "ship": ("shipped",), "sign": ("signed",),
    "star": ("starred",), "start": ("started", "running", "active", "in_progress"), "stop": ("stopped", "inactive"),
    "submit": ("submitted",), "subscribe": ("subscribed",), "suspend": ("suspended",), "terminate": ("terminated",),
    "trash": ("trashed",), "unarchive": ("active", "open"), "unblock": ("active",), "unfreeze": ("active",),
    "unlock": ("unlocked", "active"), "unpause": ("active", "running"), "unpublish": ("draft", "unpublished"),
    "unsubscribe": ("unsubscribed",), "unsuspend": ("active",), "verify": ("verified",), "void": ("voided", "void"),
    "withdraw": ("withdrawn",), "favorite": ("favorited", "favorite", "favourite"), "follow": ("followed", "following"),
    "feature": ("featured",), "flag": ("flagged",), "review": ("reviewed",), "cordon": ("cordoned",),
}  # fmt: skip

_OPPOSITES = {
    "unarchive": "archive", "unblock": "block", "unfreeze": "freeze", "unlock": "lock", "unpause": "pause",
    "unpublish": "publish", "unsubscribe": "subscribe", "unsuspend": "suspend", "unstar": "star", "unpin": "pin",
    "unmute": "mute", "unban": "ban", "unhide": "hide", "show": "hide", "disable": "enable", "deactivate": "activate",
    "unfollow": "follow", "unfavorite": "favorite", "unflag": "flag", "unverify": "verify", "unread": "read",
    "restore": "archive", "reopen": "close", "resume": "pause", "reactivate": "deactivate", "unfeature": "feature",
}  # fmt: skip
"""Verbs that take back another one: they clear its flag, or leave its state."""

_UNDOING = frozenset(
    ("cancel", "void", "reject", "decline", "revoke", "withdraw", "dismiss", "refund", "terminate", "expire")
)

_STOPS = frozenset(("by", "for", "in", "from", "to", "with", "of", "on", "at", "into", "using", "and", "or", "as"))
_FILLERS = frozenset(
    ("a", "an", "the", "all", "my", "new", "existing", "single", "one", "multiple", "many", "bulk", "batch", "info",
     "information", "details", "detail", "list", "v1", "v2", "v3", "v4", "api", "action", "current", "specific",
     "full", "async", "sync")
)  # fmt: skip


@dataclass(frozen=True)
class Said:
    """What a name says: a verb, and the singular noun it is done to."""

    verb: str
    deed: Deed
    noun: str


def deed_of(verb: str) -> Deed | None:
    """What a verb does to a record, where it is one that is known."""
    return _DEEDS.get(verb) or ("move" if is_move(verb) else None)


def states_of(verb: str) -> tuple[str, ...]:
    """Names of the states that a verb leads to; of a verb that is not known, its past participle."""
    return _STATES.get(verb) or _participles(verb)


def _participles(verb: str) -> tuple[str, ...]:
    if len(verb) < 3:
        return ()
    if verb.endswith("e"):
        return (f"{verb}d",)
    return (f"{verb[:-1]}ied",) if verb.endswith("y") else (f"{verb}ed", f"{verb}{verb[-1]}ed")


def names_nothing(text: str) -> bool:
    """Whether words like `all` or `details` are everything that a text says."""
    return bool(words(text)) and set(words(text)) <= _FILLERS | {"search", "query", "find", "filter"}


def opposite_of(verb: str) -> str | None:
    """The verb whose effect this one takes back."""
    return _OPPOSITES.get(verb)


def is_move(verb: str) -> bool:
    """Whether the verb brings a record into a state, or takes it out of one."""
    return verb in _STATES or verb in _OPPOSITES


def is_undoing(verb: str) -> bool:
    """Whether the verb takes back earlier work."""
    return verb in _UNDOING or verb in _OPPOSITES


_NOUNS_TOO = frozenset(
    ("log", "open", "record", "issue", "request", "place", "post", "index", "book", "schedule", "head", "view",
     "filter", "show", "load", "make", "store", "set", "merge", "star", "hold", "flag", "sign")
)  # fmt: skip
"""Verbs that are nouns as often: alone at the end of a name they are taken for nouns."""


def said(name: str, allowed: frozenset[Deed] = DEEDS) -> Said | None:
    """What the words of a name say.

    Args:
        name: an operationId or a tool's name; a dotted name is read from its end.
        allowed: what the operation can do at all; verbs of other deeds are taken for nouns.

    Returns:
        The verb and the noun, or `None` where no word is a known verb or nothing is named.
    """
    parts = [p for p in name.replace(":", ".").replace("/", ".").split(".") if p]
    if len(parts) > 1 and words(parts[-1]) and _verb_of(words(parts[-1])[0], allowed):
        # `projects.devices.list`: the last word acts on what stands before it
        own = _said_words(words(parts[-1]), allowed)
        return own or _named(words(parts[-1])[0], words(parts[-2]))
    return _said_words(words(" ".join(parts)), allowed)


def _verb_of(word: str, allowed: frozenset[Deed]) -> bool:
    return (word in _DEEDS or is_move(word)) and _DEEDS.get(word, "move") in allowed


def _said_words(listed: list[str], allowed: frozenset[Deed]) -> Said | None:
    verbs = [(i, w) for i, w in enumerate(listed) if _verb_of(w, allowed)]
    # `record_sets_create`: a verb that can be a noun gives way to one that cannot
    for position, word in sorted(
        verbs, key=lambda v: (v[1] in _NOUNS_TOO and v[0] + 1 < len(listed) and len(verbs) > 1, v[0])
    ):
        noun = _noun(listed[position + 1 :])
        if not noun and word not in _NOUNS_TOO:
            noun = _noun(listed[:position])
        if noun:
            return _named(word, noun)
    return None


def _noun(listed: Iterable[str]) -> list[str]:
    found: list[str] = []
    for word in listed:
        if word in _STOPS:
            break
        if word not in _FILLERS:
            found.append(word)
    return found


def _named(verb: str, noun: list[str]) -> Said | None:
    deed: Deed = _DEEDS.get(verb, "move")
    if not noun:
        return None
    many = noun[-1] != singular(noun[-1])
    if deed == "get" and many and len(noun) < 4:
        deed = "list"
    return Said(verb, deed, singular("_".join(noun)))
