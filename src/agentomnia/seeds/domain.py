"""The domain of a seed, guessed: a heuristic, good enough to place an environment on the map, not to grade with.

Each level-2 domain is a bag of words from its name, description, objects and operations, weighted by how rare a
word is among domains. The domain whose weighted words overlap most with the text wins; others come along when
they are nearly as close. Deterministic: ties go to the lower id.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from functools import cache

from agentomnia.seeds.naming import singular, words
from agentomnia.taxonomy.axes import Domain, domains

_NAME, _OBJECT, _OPERATION, _DESCRIPTION = 4.0, 3.0, 1.5, 2.0
_CLOSE = 0.92
_STOP = frozenset(
    "a an and api are as at be by can for from get has have in into is it its list new of on one or other our rest "
    "service set that the their them this to up use used user uses using via was we which will with you your data "
    "create update delete add all any between manage management access provide provides allow allows enable enables "
    "http https com www information manager account specialist planner version type group setting status code key "
    "name id public private json endpoint request response page url field value object".split()
)


def infer_domains(text: str, most: int = 2) -> tuple[int, ...]:
    """Ids of the level-2 domains closest to a text, the closest first.

    A heuristic: weighted word overlap, no understanding.

    Args:
        text: what a seed says of itself: title, description, names of its records.
        most: how many domains to return at most; at least one is always returned.
    """
    told = Counter(_plain(text))
    scores = {id: _overlap(told, weights) for id, weights in _profiles().items()}
    ranked = sorted(scores, key=lambda id: (-scores[id], id))
    best = scores[ranked[0]]
    return tuple(id for id in ranked[:most] if scores[id] >= best * _CLOSE)


def _plain(text: str) -> list[str]:
    return [singular(w) for w in words(text) if len(w) > 2 and w not in _STOP and singular(w) not in _STOP]


def _overlap(told: Counter[str], weights: Mapping[str, float]) -> float:
    # logarithms keep a word that is repeated everywhere from deciding alone, and so does the number of words met
    met = [weight * math.log1p(told[word]) for word, weight in weights.items() if word in told]
    return sum(met) * (1 - 0.7 ** len(met))


@cache
def _profiles() -> dict[int, dict[str, float]]:
    bags = {item.id: _bag(item) for item in domains()}
    spread = Counter(word for bag in bags.values() for word in bag)
    profiles = {}
    for id, bag in bags.items():
        rare = {w: weight * math.log(len(bags) / spread[w]) for w, weight in bag.items()}
        length = math.sqrt(sum(v * v for v in rare.values())) or 1.0
        profiles[id] = {w: v / length for w, v in rare.items()}
    return profiles


def _bag(item: Domain) -> dict[str, float]:
    bag: dict[str, float] = {}
    parts = [(item.l2, _NAME), (item.l1, _DESCRIPTION), (item.description, _DESCRIPTION)]
    parts += [(o["name"], _OBJECT) for o in item.objects]
    parts += [(o["name"], _OPERATION) for o in item.operations]
    for text, weight in parts:
        for word in _plain(text):
            bag[word] = max(bag.get(word, 0.0), weight)
    return bag
