r"""AG News: 127,600 English news items of four topics, title and description, with an official train and test part.

Source: X. Zhang, J. Zhao, Y. LeCun, "Character-level Convolutional Networks for Text Classification", NeurIPS 2015.
`train.csv` and `test.csv` have no header. Columns: class (1 to 4), title, description, all quoted; a quote is doubled.
The files have a lone backslash for each line break of an item. It is kept, as in the hub's copy and the published runs.
(The release's readme announces a backslash and an n. Where both occur, as in "social\network", the n begins a word.)
Title and description are joined by a space. The authors are not known, so every item counts as its own author.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl

from daamctl.corpora import hub
from daamctl.corpora.base import PREPARED_TEXT, Corpus, Fingerprint
from daamctl.errors import CorpusError, first_few

HUB_ID = "fancyzhx/ag_news"
CLASSES = ("World", "Sports", "Business", "Sci/Tech")

OFFLINE = "copy train.csv and test.csv, or the hub's Parquet files, to this machine: daamctl download agnews --from DIR"
GET_IT = "daamctl download agnews fetches it (30 MB); a copy of your own: daamctl download agnews --from DIR"
_SHOWN = 3


def obtain(folder: Path) -> Path:
    """Download the hub's copy into `folder`."""
    return hub.obtain_dataset(HUB_ID, folder, fix=OFFLINE)


def prepare(root: Path) -> pl.DataFrame:
    """Read the parts of a copy; ids count the lines of each part from 1.

    Args:
        root: the folder of train.csv and test.csv, or of a copy of the hub's data set.

    Raises:
        CorpusError: there is neither, or a row does not have this form.
    """
    parts = [_read_csv(path) for part in hub.PARTS if (path := root / f"{part}.csv").is_file()]
    if not parts:
        tables = hub.read_parts(root, ("label",), ("text",))
        parts = [_numbered(pl.DataFrame(tables[part]), part, root) for part in tables]
    if not parts:
        raise CorpusError(f"{root} does not look like AG News: no train.csv, test.csv or Parquet files", fix=GET_IT)
    return pl.concat(parts)


def _read_csv(path: Path) -> pl.DataFrame:
    try:
        rows = pl.read_csv(path, has_header=False, infer_schema=False).fill_null("")
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise CorpusError(f"{path} cannot be read as CSV: {reason}", fix="restore the file from the release") from error
    if rows.width != 3:
        raise CorpusError(f"{path} has {rows.width} columns; class, title and description are expected", fix=GET_IT)
    number, title, description = (pl.col(name) for name in rows.columns)
    label = number.str.strip_chars().cast(pl.Int64, strict=False) - 1
    return _numbered(rows.select(label=label, text=title + " " + description), path.stem, path)


def _numbered(rows: pl.DataFrame, part: str, place: Path) -> pl.DataFrame:
    """Rows of a corpus from `label` (0 to 3) and `text`, in the order of a part."""
    rows = rows.with_row_index("line", offset=1)
    wrong = rows.filter(~pl.col("label").is_between(0, len(CLASSES) - 1).fill_null(False))["line"].to_list()
    if wrong:
        lines = first_few([str(line) for line in wrong], _SHOWN)
        raise CorpusError(
            f"{place}: no class of {', '.join(CLASSES)} in row {lines} of {part}",
            fix="restore the file from the release",
        )
    identity = pl.format(part + "-{}", pl.col("line").cast(pl.String).str.zfill(6))
    return rows.select(
        utterance_id=identity,
        text=pl.col("text"),
        label=pl.col("label").replace_strict(dict(enumerate(CLASSES)), return_dtype=pl.String),
        speaker=identity,
        group=pl.lit(part),
    ).cast(pl.Schema(PREPARED_TEXT))


CORPUS = Corpus(
    name="agnews",
    title="AG News: 120,000 and 7,600 news items (official train and test part), four topics",
    licence="for non-commercial research; http://groups.di.unipi.it/~gulli/AG_corpus_of_news_articles.html",
    classes=CLASSES,
    prepare=prepare,
    fingerprint=Fingerprint(
        per_class=dict.fromkeys(CLASSES, 31_900), per_group={"train": 120_000, "test": 7_600}, balanced=True
    ),
    how_to_get=GET_IT,
    obtain=obtain,
    url=f"https://huggingface.co/datasets/{HUB_ID}",
    aliases={**{name.lower(): name for name in CLASSES}, "scitech": "Sci/Tech"},
    modality="text",
)
