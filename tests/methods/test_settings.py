"""Groups of settings: which methods they reach, and that no two of them claim one name."""

from __future__ import annotations

from dataclasses import fields

from daamctl.methods import METHODS
from daamctl.methods.settings import GROUPS, DecoderOptions, DensityOptions, GroupedQueryOptions


def names(group: type) -> set[str]:
    return {field.name for field in fields(group)}


def methods_with(group: type) -> set[str]:
    return {method for method in METHODS if names(group) <= set(METHODS.defaults(method))}


def test_no_setting_belongs_to_two_groups() -> None:
    claimed = [name for group in GROUPS for name in names(group)]
    assert len(claimed) == len(set(claimed))


def test_methods_that_a_group_reaches() -> None:
    assert methods_with(DensityOptions) == {"daam-v1", "daam-v2", "daam-frozen", "gqdaam", "gqdaam-published"}
    assert methods_with(GroupedQueryOptions) == {"gqa", "gqa-published", "gqdaam", "gqdaam-published"}
    assert methods_with(DecoderOptions) == {method for method in METHODS if "decoder" in METHODS.choices(method)}


def test_defaults_are_those_of_the_group_and_choices_include_them() -> None:
    for method in METHODS:
        defaults, choices = METHODS.defaults(method), METHODS.choices(method)
        for group in GROUPS:
            if method in methods_with(group):
                assert {field.name: field.default for field in fields(group)}.items() <= defaults.items()
        assert all(defaults[key] in allowed for key, allowed in choices.items())
