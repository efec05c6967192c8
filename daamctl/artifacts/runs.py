"""Find what was trained by its name: a pipeline or an ad-hoc run, and the folds of its methods."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from daamctl.artifacts.layout import Layout, split_recipe
from daamctl.artifacts.results import Fold, read_fold, read_folds
from daamctl.config import Config, load_config, parse_overrides, pipeline_names
from daamctl.errors import ArtifactError, ConfigError, UnknownNameError, first_few


def find_run(root: Path, name: str, *, reconstructs: bool = False) -> tuple[Layout, Config]:
    """Layout and settings of a pipeline, or of an ad-hoc run, whose corpus and encoder its folds name.

    Args:
        name: name of the pipeline or run, possibly with the suffix of a recipe.
        reconstructs: whether it may reconstruct images.

    Raises:
        UnknownNameError: there is neither.
        ConfigError: its settings are wrong, or it reconstructs images and may not.
        ArtifactError: a fold of the ad-hoc run is damaged.
    """
    pipelines = pipeline_names(root)
    base, recipe = (name, None) if name in pipelines else split_recipe(name)
    words = [f"train.recipe={recipe}"] if recipe else []
    named = parse_overrides(words)
    if base in pipelines:
        config = load_config(root, base, named)
        if not reconstructs:
            check_classifies(name, config)
        return Layout.of(root, base, config, words, recipe), config
    made = {path.parts[-4]: path.parent for path in (root / "data" / "train").glob("*/*/fold*/result.json")}
    if name not in made:
        raise UnknownNameError("pipeline or run", name, {*pipelines, *made})
    settings = read_fold(made[name]).result["run"]["config"]
    corpus, encoder = settings["download"]["corpus"], settings.get("extract", {}).get("encoder")
    made_by = {} if encoder is None else {"extract.encoder": encoder}
    config = load_config(root, None, {"download.corpus": corpus, **made_by, **named})
    return Layout(root, None, corpus, name, corpus, encoder, tuple(words), recipe), config


def check_classifies(name: str, config: Config) -> None:
    """Refuse a pipeline without methods and folds.

    Raises:
        ConfigError: it reconstructs images.
    """
    if config.task == "reconstruct":
        raise ConfigError(
            f"{name} reconstructs images, so it has no methods and folds",
            fix=f"its blocks are compared by: daamctl show {name}",
        )


def trained_methods(layout: Layout) -> list[str]:
    """Methods of a run that have a finished fold."""
    return sorted({path.parts[-3] for path in layout.method("").glob("*/fold*/result.json")})


def with_seeds(folds: Sequence[Fold], seeds: Collection[int] | None) -> list[Fold]:
    """The folds with one of these seeds; None: all folds."""
    return [fold for fold in folds if seeds is None or fold.seed in seeds]


def complete_folds(layout: Layout, method: str, seeds: Collection[int] | None) -> list[Fold]:
    """Read all folds of a method.

    Args:
        seeds: seeds that every fold must have; None: those that were found.

    Raises:
        ArtifactError: a fold is missing or damaged.
    """
    place, name = layout.method(method), f"{layout.run_name}/{method}"
    folds = with_seeds(read_folds(place), seeds)
    if not folds:
        raise ArtifactError(f"'{name}' has no finished fold", path=place)
    wanted = seeds or {fold.seed for fold in folds}
    done = {(fold.fold, fold.seed) for fold in folds}
    numbers = range(1, folds[0].result["run"]["num_folds"] + 1)
    missing = [(fold, seed) for fold in numbers for seed in sorted(wanted) if (fold, seed) not in done]
    if missing:
        shown = first_few([f"fold {fold} seed {seed}" for fold, seed in missing])
        raise ArtifactError(f"'{name}' lacks {shown}", path=place)
    return folds
