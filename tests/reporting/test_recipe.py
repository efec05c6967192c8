"""Which runs show what the recipe of training is worth."""

from daamctl.artifacts.layout import split_recipe
from daamctl.reporting.recipe import AGAIN, BACK, Sibling, siblings


def test_names_are_those_of_the_layout():
    assert split_recipe(f"toy{AGAIN}") == ("toy", "published")
    assert split_recipe(f"toy{BACK}") == ("toy", "searched")


def test_a_run_and_its_other_recipe_name_each_other():
    assert Sibling("toy-published-recipe", searched=False) in siblings("toy", "searched")
    assert siblings("toy-published-recipe", "published") == [Sibling("toy", searched=True)]
    assert siblings("toy-as-published-searched-recipe", "searched") == [Sibling("toy-as-published", searched=False)]
