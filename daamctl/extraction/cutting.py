"""Cut utterances into consecutive clips. Times are in seconds; cuts are computed in samples at the rate of the file.

So an utterance of exactly 5.0 s gives one clip. No audio is copied: a clip is a row with the file, start and duration.
Source: the published set-up cuts at 5 s and keeps the last piece, however short (docs/sources.md#clips-and-folds, D23).
The other values of `segment.tail`, and `segment.tail_below_s`, are this project's.
"""

from __future__ import annotations

import polars as pl

from daamctl.artifacts.clips import SCHEMAS
from daamctl.artifacts.utterances import SENTENCE
from daamctl.config import SegmentConfig
from daamctl.errors import ArtifactError, ConfigError


def cut(utterances: pl.DataFrame, config: SegmentConfig) -> pl.DataFrame:
    """Cut a table of utterances into clips.

    Returns:
        Rows with the columns of the clip table.

    Raises:
        ConfigError: the longest clip is shorter than one sample.
        ArtifactError: an utterance has no samples.
    """
    rate = pl.col("sampling_rate").cast(pl.Int64)
    start, duration = pl.col("start_s"), pl.col("duration_s")
    first, end = (start * rate).round(), ((start + duration) * rate).round()
    rows = utterances.sort("utterance_id").with_columns(
        _start=first.cast(pl.Int64),
        # a start between two samples must not move the end beyond that of the file
        _length=pl.min_horizontal((duration * rate).round(), end - first).cast(pl.Int64),
        _longest=(config.max_duration_s * rate).round().cast(pl.Int64),
    )
    if rows.filter(pl.col("_longest") < 1).height:
        raise ConfigError(f"segment.max_duration_s: {config.max_duration_s:g} s is less than one sample")
    empty = rows.filter(~(pl.col("_length") >= 1).fill_null(False))
    if empty.height:
        raise ArtifactError(f"utterance '{empty['utterance_id'][0]}' has no samples ({empty.height} such rows)")
    length, longest = pl.col("_length"), pl.col("_longest")
    # `tail` applies to last pieces with fewer samples than `_short`
    rows = rows.with_columns(_short=pl.min_horizontal(longest, _shortest_kept(config.tail_below_s, rate)))
    count = -(-length // longest)  # rounded up
    if config.tail in ("merge", "drop"):
        rest = length % longest
        removed = (rest > 0) & (rest < pl.col("_short")) & (length > longest)  # an only clip always stays
        count -= removed.cast(pl.Int64)
    rows = rows.with_columns(_count=count).with_columns(_index=pl.int_ranges(0, pl.col("_count")))
    return _describe(rows.explode("_index"), config)


def _shortest_kept(tail_below_s: float | None, rate: pl.Expr) -> pl.Expr:
    """Samples of the shortest last piece that `tail` does not apply to; null if it applies to all."""
    if tail_below_s is None:
        return pl.lit(None, pl.Int64)
    return (tail_below_s * rate).round(6).ceil().cast(pl.Int64)  # 1.1 * 16000 is a little more than 17600


def _describe(rows: pl.DataFrame, config: SegmentConfig) -> pl.DataFrame:
    """Columns of the clip table, for rows that are one clip each."""
    index, longest = pl.col("_index"), pl.col("_longest")
    rest = pl.col("_length") - index * longest
    is_last = index == pl.col("_count") - 1
    if config.tail == "merge":  # the last clip includes the rest, so it may be nearly twice as long
        size = pl.when(is_last).then(rest).otherwise(longest)
    else:
        size = pl.min_horizontal(rest, longest)
    pad_to = pl.lit(None, pl.Float64)
    if config.tail == "pad":
        pad_to = pl.when(size < pl.col("_short")).then(longest / pl.col("sampling_rate")).otherwise(pad_to)
    return (
        rows.with_columns(
            clip_id=pl.col("utterance_id") + "#" + index.cast(pl.String).str.zfill(3),
            start_s=(pl.col("_start") + index * longest) / pl.col("sampling_rate"),
            duration_s=size / pl.col("sampling_rate"),
            pad_to_s=pad_to,
        )
        .select(*SCHEMAS["speech"], pl.col(f"^{SENTENCE}$"))
        .cast(pl.Schema(SCHEMAS["speech"]))
    )
