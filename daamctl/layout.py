"""Where artifacts lie: `data/<stage>/<name>/…`, one word per stage.

`name` is the pipeline's name. Without a pipeline (`daamctl extract --corpus emodb --encoder wavlm-large`), tables and
clips go under the corpus name, and everything that depends on the encoder under `<corpus>-<encoder>`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from daamctl.config import Config

STAGES = ("download", "segment", "extract", "train", "evaluate", "ablate", "importance", "report")


@dataclass(frozen=True)
class Layout:
    """Folders of one pipeline or ad-hoc run.

    Args:
        root: project folder.
        pipeline: pipeline name; None for an ad-hoc run.
        table_name: folder name of what depends on the corpus alone.
        run_name: folder name of what depends on the encoder too.
        corpus: corpus of an ad-hoc run, to be named in commands.
        encoder: encoder of an ad-hoc run, to be named in commands.
    """

    root: Path
    pipeline: str | None
    table_name: str
    run_name: str
    corpus: str | None = None
    encoder: str | None = None

    @classmethod
    def of(cls, root: Path, pipeline: str | None, config: Config) -> Layout:
        """Layout of a pipeline, or of the settings' corpus and encoder when `pipeline` is None."""
        if pipeline is not None:
            return cls(root, pipeline, pipeline, pipeline)
        corpus, encoder = config.download.corpus, config.extract.encoder
        run_name = f"{corpus}-{Path(encoder).name if '/' in encoder else encoder}"
        return cls(root, None, corpus, run_name, corpus, encoder)

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
        """Folder of unfinished work; safe to delete, at the price of doing it again."""
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
        """Folder of the embedding shards."""
        return self.data / "extract" / self.run_name

    def method(self, method: str) -> Path:
        """Folder of one method's folds."""
        return self.data / "train" / self.run_name / method

    def stage(self, stage: str) -> Path:
        """Folder of one of the stages after `train`."""
        return self.data / stage / self.run_name

    def command(self, stage: str, *extra: str) -> str:
        """The command that runs `stage` for this layout, to be named in errors."""
        where = ["--pipeline", self.pipeline] if self.pipeline else []
        if self.corpus is not None and self.encoder is not None:
            where = {"download": [self.corpus], "segment": ["--corpus", self.corpus]}.get(
                stage, ["--corpus", self.corpus, "--encoder", self.encoder]
            )
        return " ".join(["daamctl", stage, *where, *extra])
