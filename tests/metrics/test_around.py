"""Those who stand around one method end in any order, and nothing of them is left."""

import itertools

from rungwise.metrics.around import Around

import pytest


class Owner:
    def greet(self, name):
        return f"hello {name}"


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("order", itertools.permutations(range(3)))
def test_whoever_ends_first_the_others_stay(order, own):
    owner = Owner()
    if own:
        owner.greet = lambda name: f"hello {name}"
    before = owner.greet
    watchers = [Around(owner, "greet", lambda method, name, n=n: f"{method(name)} {n}") for n in range(3)]
    left = [0, 1, 2]
    assert owner.greet("you") == "hello you 0 1 2"
    for number in order:
        watchers[number].remove()
        left.remove(number)
        assert owner.greet("you") == " ".join(["hello you", *map(str, left)])
    assert owner.greet == before and ("greet" in vars(owner)) == own
