"""Locations of artifacts: `data/<stage>/<name>/…`, one word per stage.

`name` is the pipeline's name. Without a pipeline (`daamctl extract --corpus emodb --encoder wavlm-large`), tables and
clips use the corpus name, and everything that depends on the encoder uses `<corpus>-<encoder>`. If the command line
names another training recipe than the pipeline, `-<recipe>-recipe` is appended to the name for training, scoring and
reporting, so that the pipeline's own results are kept; tables, clips and embeddings are shared.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from daamctl.config import RECIPES, Config
from daamctl.data.stage_table import STAGES, Task


@dataclass(frozen=True)
class Layout:
    """Folders of one pipeline or ad-hoc run.

    Args:
        pipeline: pipeline name; None for an ad-hoc run.
        table_name: folder name of what depends only on the corpus.
        run_name: folder name of what depends on the encoder too.
        corpus: corpus of an ad-hoc run, for commands in messages.
        encoder: encoder of an ad-hoc run, for commands in messages; None if the embeddings are given.
        overrides: `section.key=value` words from the command line, to repeat in commands.
        recipe: training recipe named on the command line, if it is not the pipeline's own.
        task: `Config.task`.
    """

    root: Path
    pipeline: str | None
    table_name: str
    run_name: str
    corpus: str | None = None
    encoder: str | None = None
    overrides: tuple[str, ...] = ()
    recipe: str | None = None
    task: Task = "classify"

    @classmethod
    def of(
        cls, root: Path, pipeline: str | None, config: Config, overrides: Sequence[str] = (), recipe: str | None = None
    ) -> Layout:
        """Layout of a pipeline, or of the settings' corpus and encoder when `pipeline` is None."""
        suffix = _recipe_suffix(recipe) if recipe else ""
        if pipeline is not None:
            name = pipeline + suffix
            return cls(root, pipeline, pipeline, name, overrides=tuple(overrides), recipe=recipe, task=config.task)
        corpus, encoder = config.download.corpus, config.extract.encoder if config.has_encoder else None
        run_name = corpus
        if encoder is not None:
            run_name += f"-{Path(encoder).name if '/' in encoder else encoder}"
        return cls(root, None, corpus, run_name + suffix, corpus, encoder, tuple(overrides), recipe)

    @property
    def data(self) -> Path:
        """Folder of all artifacts."""
        return self.root / "data"

    @property
    def corpora(self) -> Path:
        """Folder of audio obtained on this machine; not an artifact."""
        return self.data / "corpora"

    @property
    def work(self) -> Path:
        """Folder of unfinished work; can be deleted at the cost of repeating that work."""
        return self.data / ".work"

    @property
    def utterances(self) -> Path:
        """The utterance table."""
        return self.data / "download" / self.table_name / "utterances.parquet"

    @property
    def clips(self) -> Path:
        """The clip table."""
        return self.data / "segment" / self.table_name / "clips.parquet"

    @property
    def embeddings(self) -> Path:
        """Folder of the embedding shards; independent of the training recipe."""
        return self.data / "extract" / self.run_name.removesuffix(_recipe_suffix(self.recipe) if self.recipe else "")

    @property
    def report_settings(self) -> Path:
        """What the report was written from, see `inputs_of_report`."""
        return self.stage("report") / "settings.json"

    def method(self, method: str) -> Path:
        """Folder of one method's folds."""
        return self.data / "train" / self.run_name / method

    def stage(self, stage: str) -> Path:
        """Folder of one of the stages after `train`, or one that it writes beside its own (`StageSpec.beside`)."""
        return self.data / stage / self.run_name

    def command(self, stage: str, *extra: str) -> str:
        """Shell command that runs `stage` for this layout, quoted, for error messages.

        Args:
            extra: further words, already quoted; a setting among them replaces one from the command line.
        """
        words = self._options(stage)
        for word in self.overrides:
            if _matters(word, stage) and not _is_among(word, extra):
                words += ["--set", word]
        return " ".join(["daamctl", stage, *map(shlex.quote, words), *extra])

    def command_with(self, stage: str, *settings: str, extra: Sequence[str] = ()) -> str:
        """`command` with other settings; `run` and DVC take those of a pipeline from its file, which it names."""
        text = self.command(stage, *extra, *(f"--set {one}" for one in settings))
        return (
            text if self.pipeline is None else f"{text}; for run and DVC, write it into pipelines/{self.pipeline}.yaml"
        )

    def _options(self, stage: str) -> list[str]:
        """Words that name the pipeline, or the corpus and the encoder of an ad-hoc run."""
        if self.pipeline is not None:
            return [self.pipeline]
        if self.corpus is None:
            return []
        if stage in ("download", "segment") or self.encoder is None:
            return ["--corpus", self.corpus]
        return ["--corpus", self.corpus, "--encoder", self.encoder]


def split_recipe(run_name: str) -> tuple[str, str | None]:
    """Split a run's name into the name proper and its recipe; None if it has none."""
    for recipe in RECIPES:
        if run_name.endswith(_recipe_suffix(recipe)):
            return run_name.removesuffix(_recipe_suffix(recipe)), recipe
    return run_name, None


def _recipe_suffix(recipe: str) -> str:
    """Suffix of a run's name for a recipe other than its pipeline's own."""
    return f"-{recipe}-recipe"


def _matters(word: str, stage: str) -> bool:
    """Whether a stage depends on the setting in a `section.key=value` word."""
    if stage not in STAGES:
        return True
    section = word.partition("=")[0].partition(".")[0].strip()
    if section not in STAGES:  # e.g. `methods` and `method_settings`
        section = "train"
    order = list(STAGES)  # a stage uses its own section and those before it
    return order.index(section) <= order.index(stage)


def _is_among(word: str, extra: Sequence[str]) -> bool:
    """Whether one of a command's further words sets the same key."""
    key = word.partition("=")[0].strip()
    return any(part.removeprefix("'").startswith(f"{key}=") for words in extra for part in words.split())
