"""The stage `download`: find or obtain a corpus, read it, check it, and write its utterance table.

Recordings and images stay in their folder, which only the register of this machine knows (`daamctl.corpora.sources`).
This stage reads every file header, so that later stages need not expect missing or broken files. Texts are stored in
the table itself. Durations are in seconds.
"""

from __future__ import annotations

import logging
import shlex
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from daamctl.artifacts.layout import Layout
from daamctl.artifacts.splits import OFFICIAL, cross_validated, fold_groups, is_official, split_of
from daamctl.artifacts.terms import counted
from daamctl.artifacts.utterances import SENTENCE, TEXTS, Modality, UtteranceTable, write_utterances
from daamctl.compute.progress import progress
from daamctl.config import Config, DownloadConfig
from daamctl.config.corpus_keys import FILES, MANIFEST, is_table, key_of
from daamctl.corpora import CORPORA
from daamctl.corpora.base import SCHEMAS, Corpus, check_labels, class_counts, label_doubts, modality_of
from daamctl.corpora.files import roles_doubt
from daamctl.corpora.fingerprint import validate
from daamctl.corpora.groups import EVEN, assign_groups, cross_groups, even_number, shared, unevenness
from daamctl.corpora.images import header_problems
from daamctl.corpora.sources import forget, register, source_of
from daamctl.data.audio import END_SLACK_S, AudioInfo, probe
from daamctl.data.task import task_of
from daamctl.errors import AudioError, ConfigError, CorpusError, TrainingError, UnknownNameError, first_few
from daamctl.store.files import content_key, expanded, locked, put, sha256_file

log = logging.getLogger(__name__)

MAX_NAMED = 10
"""Most unreadable files to name in a message."""
NEXT_LINE = "\n    "
MAX_DIFFERENCES = 30
"""Most differences from the published counts to name in a message."""
PROBE_THREADS = 8
T = TypeVar("T")


def run(layout: Layout, config: Config, *, source: Path | None = None, force: bool = False) -> Path:
    """Write the utterance table of a corpus.

    Args:
        source: folder of the corpus on this machine (for `manifest`: the table, or a folder of images; for
            `embeddings`: the file), to be registered. None: the source of the settings, else the registered one, else
            the corpus is obtained.
        force: obtain again what daamctl itself downloaded, converted or generated, or a registered copy that is gone.

    Returns:
        The file written.

    Raises:
        ConfigError: a class is not in the corpus.
        CorpusError: the corpus is not on this machine, incomplete, or does not match its fingerprint.
    """
    corpus: Corpus = CORPORA.load(config.download.corpus)
    with _located(layout, corpus, config.download, source, force) as (place, final):
        words = [] if source is None else [f"--from {shlex.quote(str(source))}"]
        table = _read(layout, config, corpus, place, partial(layout.command_with, "download", extra=words))
    register(layout.root, table.corpus, final, table.content)
    write_utterances(layout.utterances, table)
    _log_summary(table)
    return layout.utterances


def _read(layout: Layout, config: Config, corpus: Corpus, place: Path, again: Callable[..., str]) -> UtteranceTable:
    """Read and check a copy of a corpus. Writes nothing: a copy that is refused takes the place of no other.

    Args:
        again: gives the command that repeats this stage with other settings, as do those of the following functions.
    """
    settings = config.download
    root = place.parent if corpus.name in FILES and is_table(place) else place
    rows = corpus.prepare(place)
    modality = corpus.modality or modality_of(rows)
    if lacking := [name for name in SCHEMAS[modality] if name not in rows.columns]:
        raise CorpusError(
            f"corpus '{corpus.name}': its `prepare` gives no column {', '.join(lacking)}",
            fix="the columns of each kind of corpus are in daamctl/corpora/base.py",
        )
    _check_parts(corpus, rows, settings, again)
    _check_complete(corpus, rows, settings, again)
    # photographs of one class are there to be reconstructed, and a corpus alone does not tell what it is for
    classifies = config.task == "classify" and (layout.pipeline is not None or len(corpus.classes) != 1)
    classes = select_classes(corpus, rows, settings.classes, least=2 if classifies else 1)
    left_out = sorted(set(rows["label"].unique()) - set(classes)) if modality == "tokens" else []
    if left_out:  # sentences would lose words, and entities their begin or end
        raise ConfigError(
            f"download.classes leaves out {', '.join(left_out)}, so sentences would lack words",
            fix="give all tags, or none: download.classes=null",
        )
    rows = rows.filter(pl.col("label").is_in(list(classes)))
    rows = _readable(rows, modality, root, settings.max_unreadable_fraction, again)
    absent = sorted(set(classes) - set(rows["label"].unique()))
    if absent:
        raise CorpusError(
            f"no readable {task_of(modality).original} of class {', '.join(absent)} is left",
            fix="restore the files, or leave the class out",
        )
    rows = _group(rows, modality, settings, again)
    if classifies:
        if modality != "tokens":
            check_labels(rows, f"corpus '{corpus.name}'", "write the class of every item in the column label")
        _check_folds(rows, layout, config)
    doubts = label_doubts(classes)
    if corpus.name == MANIFEST:
        doubts += roles_doubt(rows, place, {}, task_of(modality).source)
    for doubt in doubts:
        log.warning("%s", doubt)
    _warn_of_rare(rows, classes, modality)
    kept = {name: value for name, value in config.section("download").items() if name != "source"}
    facts = {} if corpus.facts is None else corpus.facts(place)
    content = "" if modality in TEXTS else _content(rows["path"].unique().sort(), root)
    return UtteranceTable(key_of(corpus.name, place), classes, rows, kept, modality, content, facts)


def select_classes(
    corpus: Corpus, rows: pl.DataFrame, asked: tuple[str, ...] | None, *, least: int = 2
) -> tuple[str, ...]:
    """The classes to use, in label order.

    Args:
        asked: names or aliases; None: the default classes.

    Raises:
        ConfigError: a name is not a class of the corpus, is given twice, or there are fewer than `least`.
        CorpusError: the corpus has no item of a class.
    """
    found = set(rows["label"].unique())
    known = found | set(corpus.classes)
    if corpus.fingerprint is not None:
        known |= set(corpus.fingerprint.per_class)
    names = asked if asked is not None else tuple(corpus.classes or sorted(found))
    classes = tuple(name if name in known else corpus.aliases.get(name, name) for name in names)
    for name in classes:
        if name not in known:
            raise UnknownNameError("class", name, known, of=corpus.name)
    if twice := next((name for name in classes if classes.count(name) > 1 and len(set(names)) == len(names)), None):
        same = [repr(name) for name, one in zip(names, classes, strict=True) if one == twice]
        raise ConfigError(f"{' and '.join(same)} are one class, '{twice}'", fix="give it once in download.classes")
    if len(set(classes)) < max(least, len(classes)):
        raise ConfigError(
            f"at least two different classes are needed, got {', '.join(names) or 'none'}",
            fix=f"classes of corpus '{corpus.name}': {', '.join(sorted(known))}",
        )
    absent = [name for name in classes if name not in found]
    if absent:
        raise CorpusError(f"corpus '{corpus.name}' has no item of class {', '.join(absent)}", fix=corpus.how_to_get)
    return classes


@contextmanager
def _located(
    layout: Layout, corpus: Corpus, settings: DownloadConfig, source: Path | None, force: bool
) -> Iterator[tuple[Path, Path]]:
    """The input of `Corpus.prepare`, i.e. the root folder or the manifest file, and where it is after the block.

    A copy that is made anew or converted lies beside the one that is there, and replaces it if the block succeeds.
    """
    own, registered = layout.corpora / corpus.name, source_of(layout.root, corpus.name)
    if source is None and settings.source is not None:
        source = layout.root / expanded(settings.source)
    make: Callable[[], Path] | None = None
    beside = own.with_name(f".{own.name}-new") / own.name  # what a download that failed has left there continues
    if source is not None:
        given, is_file = expanded(source).absolute(), corpus.name in FILES
        if is_file and not given.exists():
            what = "manifest file" if corpus.name == MANIFEST else "file"
            raise CorpusError(f"no {what} {given}", fix=corpus.how_to_get)
        if not is_file and not given.is_dir():
            raise CorpusError(f"no folder {given} (given for corpus '{corpus.name}')", fix=corpus.how_to_get)
        place = given
        if corpus.adopt is not None and given.resolve() != own.resolve():
            make = partial(corpus.adopt, given, beside if force else own, beside)
    elif corpus.obtain is not None and (registered in (None, own) or (force and not registered.exists())):
        make = partial(corpus.obtain, beside if force and own.exists() else own)
    elif registered is None:
        raise CorpusError(f"corpus '{corpus.name}' is not on this machine", fix=corpus.how_to_get)
    elif not registered.exists():
        message, fix = f"corpus '{corpus.name}' was registered at {registered}, which does not exist", corpus.how_to_get
        if corpus.obtain is not None:
            again, own_copy = (layout.command("download", word) for word in ("--force", "--from DIR"))
            fix = f"make the folder reachable, or obtain the corpus: {again}; a copy of your own: {own_copy}"
        raise CorpusError(message, fix=fix)
    else:
        place = registered
    if make is None:
        yield place, place
        return
    with locked(layout.corpora / f".{corpus.name}.lock", what=f"corpus '{corpus.name}'"):
        shutil.rmtree(beside, ignore_errors=True)
        if not own.exists():  # it was deleted
            forget(layout.root, corpus.name, own)
        try:
            yield (place := make()), own
            if place == beside:
                forget(layout.root, corpus.name, own)
                put(beside, own)
                shutil.rmtree(beside.parent, ignore_errors=True)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
            with suppress(OSError):  # it holds an unfinished download
                beside.parent.rmdir()


def _check_parts(corpus: Corpus, rows: pl.DataFrame, settings: DownloadConfig, again: Callable[..., str]) -> None:
    """Refuse a copy that lacks a part of the official split, because its parts would be taken for ordinary groups."""
    groups = rows["group"].drop_nulls()
    found = set(groups.unique())
    if settings.folds == "stratified" or groups.is_empty() or not found <= set(OFFICIAL) or is_official(groups):
        return
    missing = [part for part in ("train", "test") if part not in found]
    sets = ["download.folds=stratified"]
    if corpus.fingerprint is not None:
        sets.append("download.check_fingerprint=false")
    raise CorpusError(
        f"corpus '{corpus.name}' lacks the part {' and '.join(missing)} of its official split (found: "
        f"{', '.join(sorted(found))})",
        fix=f"complete the copy, or form folds from these items: {again(*sets)}",
    )


def _check_complete(corpus: Corpus, rows: pl.DataFrame, settings: DownloadConfig, again: Callable[..., str]) -> None:
    """Compare the copy with the fingerprint of the corpus; only a warning if the settings accept differences."""
    differences = validate(corpus, rows)
    if not differences:
        return
    if len(differences) > MAX_DIFFERENCES:  # keep the last ones too: they are about the groups
        half = MAX_DIFFERENCES // 2
        differences[half:-half] = [f"... and {len(differences) - 2 * half} more ..."]
    listed = "".join(NEXT_LINE + difference for difference in differences)
    if settings.check_fingerprint:
        raise CorpusError(
            f"corpus '{corpus.name}' does not match its published counts; differences:{listed}",
            fix=f"complete the copy, or accept it as it is: {again('download.check_fingerprint=false')}",
        )
    log.warning("corpus '%s' does not match its published counts (accepted); differences:%s", corpus.name, listed)


def _readable(
    rows: pl.DataFrame, modality: Modality, root: Path, max_fraction: float, again: Callable[..., str]
) -> pl.DataFrame:
    """Drop rows that cannot be read, or refuse the corpus if their fraction exceeds `max_fraction`."""
    if modality == "embeddings":  # `prepare` has read them all
        return rows
    if modality == "speech":
        rows = _measured(rows, root)
    elif modality == "image":
        rows = rows.with_columns(_problem=header_problems(rows, root))
    else:
        blank = pl.when(pl.col("text").fill_null("").str.strip_chars() == "")
        rows = rows.with_columns(_problem=blank.then(pl.col("utterance_id") + " is empty"))
    problems = rows["_problem"].drop_nulls()
    if len(problems):
        shown = first_few(problems.sort().to_list(), MAX_NAMED, separator=NEXT_LINE)
        fraction = len(problems) / rows.height
        what = f"{task_of(modality).original}s are unreadable"
        message = f"{len(problems)} of {rows.height} {what} ({fraction:.2%}):{NEXT_LINE}{shown}"
        if fraction > max_fraction:
            damaged = "the table" if modality in TEXTS else "the files or the table that names them"
            enough = min(1.0, -(-fraction * 1000 // 1) / 1000)  # rounded up
            without = again(f"download.max_unreadable_fraction={enough:g}")
            raise CorpusError(
                f"{message}\n  allowed: download.max_unreadable_fraction = {max_fraction:g}",
                fix=f"repair {damaged}, or leave them out: {without}",
            )
        log.warning("left out: %s", message)
    return rows.filter(pl.col("_problem").is_null()).drop("_problem")


def _measured(rows: pl.DataFrame, root: Path) -> pl.DataFrame:
    """Fill in duration and sampling rate from the headers of recordings, and what is wrong with a row as `_problem`."""
    facts = _probe_all(rows["path"].unique().sort(), root)
    rows = rows.join(facts, on="path", how="left", maintain_order="left")
    samples, rate = pl.col("_samples"), pl.col("sampling_rate")
    file_s = samples / rate
    end_s = pl.col("start_s") + pl.col("duration_s")
    outside = (pl.col("start_s") * rate).round() >= samples
    problem = (
        pl.when(pl.col("_problem").is_not_null())
        .then(pl.col("_problem"))
        .when(outside | (end_s > file_s + END_SLACK_S))
        .then(pl.format("{}: the piece at {} s lies outside its {} s", "path", "start_s", file_s.round(3)))
        .when((pl.col("duration_s") * rate).round() < 1)
        .then(pl.format("{}: the piece at {} s is shorter than one sample", "path", "start_s"))
    )
    rest_s = file_s - pl.col("start_s")
    duration_s = pl.min_horizontal(pl.col("duration_s").fill_null(rest_s), rest_s)
    return rows.with_columns(_problem=problem, duration_s=duration_s).drop("_samples")


def _probe_all(paths: pl.Series, root: Path) -> pl.DataFrame:
    """Read the header of every file: number of samples, sampling rate and channels, or the problem."""

    def one(path: str) -> tuple[str, int | None, int | None, int | None, str | None]:
        try:
            info: AudioInfo = probe(root / path)
        except AudioError as error:
            return path, None, None, None, error.message
        return path, info.num_samples, info.sampling_rate, info.n_channels, None

    facts = _each(paths, one, "reading file headers")
    schema = {
        "path": pl.String,
        "_samples": pl.Int64,
        "sampling_rate": pl.Int32,
        "n_channels": pl.Int32,
        "_problem": pl.String,
    }
    return pl.DataFrame(facts, schema=schema, orient="row")


def _content(paths: pl.Series, root: Path) -> str:
    """Hash of the content of all files, so that other recordings or images under the same names give other keys."""

    def one(path: str) -> str:
        try:
            return sha256_file(root / path)
        except OSError as error:
            raise CorpusError(f"{root / path} cannot be read: {error.strerror}") from error

    return content_key(dict(zip(paths, _each(paths, one, "reading files"), strict=True)))


def _each(paths: pl.Series, read: Callable[[str], T], doing: str) -> list[T]:
    """What reading every file gives, in order, with a progress bar."""
    found = []
    with ThreadPoolExecutor(PROBE_THREADS) as pool, progress(len(paths), doing, "files") as bar:
        for one in pool.map(read, paths):
            found.append(one)
            bar.advance()
    return found


def _group(rows: pl.DataFrame, modality: Modality, settings: DownloadConfig, again: Callable[..., str]) -> pl.DataFrame:
    """Form groups if the corpus has none or the settings ask for it; warn if its own groups share speakers."""
    stratify = settings.folds == "stratified"
    source = task_of(modality).with_sources(rows["utterance_id"], rows["speaker"]).source
    if settings.disjoint != "speaker":
        return _group_by_sentence(rows, modality, settings, again)
    if not stratify and rows["group"].null_count() == 0:
        if speakers := shared(rows):
            names = first_few(speakers, MAX_NAMED)
            log.warning("%ss in more than one group, so folds are not %s-independent: %s", source, source, names)
        return rows
    stratify = stratify or modality != "speech"
    rows = assign_groups(rows, settings.num_groups, stratify=stratify)
    if (formed := rows["group"].n_unique()) < settings.num_groups:
        sources = counted(rows["speaker"].n_unique(), source)
        log.warning(
            "only %s instead of %d: there are no more than %s", counted(formed, "group"), settings.num_groups, sources
        )
    elif unevenness(rows) > EVEN and rows["speaker"].n_unique() < rows.height:
        _warn_of_uneven(rows, settings.num_groups, source, again, stratify=stratify)
    return rows


def _group_by_sentence(
    rows: pl.DataFrame, modality: Modality, settings: DownloadConfig, again: Callable[..., str]
) -> pl.DataFrame:
    """Form groups that share no sentence, or pairs of speakers and sentences.

    Raises:
        CorpusError: the sentence of an item is not known.
    """
    unknown = rows.height if SENTENCE not in rows.columns else rows[SENTENCE].null_count()
    if unknown:
        raise CorpusError(
            f"download.disjoint={settings.disjoint} needs the sentence of every {task_of(modality).item}; that of "
            f"{unknown} of {rows.height} is not known",
            fix=f"give the table a column {SENTENCE}, or: {again('download.disjoint=speaker')}",
        )
    stratify = settings.folds == "stratified" or modality != "speech"
    if settings.disjoint == "sentence":
        return assign_groups(rows, settings.num_groups, stratify=stratify, unit=SENTENCE)
    own = rows.with_columns(group=pl.lit(None, pl.String)) if stratify else rows
    rows = cross_groups(own, settings.num_groups, stratify=stratify)
    used = [sum(map(len, cross_validated(rows["group"], name, dev_group=False)[1:])) for name in rows["group"].unique()]
    log.info(
        "%d folds; each leaves out %d to %d of %d items, which have its speakers or its sentences, but not both",
        *(len(used), rows.height - max(used), rows.height - min(used), rows.height),
    )
    return rows


def _warn_of_uneven(
    rows: pl.DataFrame, num_groups: int, source: str, again: Callable[..., str], *, stratify: bool
) -> None:
    """Warn of folds of different sizes, and propose a number of groups that makes them even."""
    sizes = sorted((size for _, size in rows.group_by("group").len().iter_rows()), reverse=True)
    better = even_number(rows, num_groups, stratify=stratify)
    if better is None:
        advice = f"no other number of groups near it makes them even: one or more {source}s have too many items"
    else:
        speakers = rows["speaker"].n_unique()
        note = f" (one {source} each)" if better == speakers else ""
        command = again(f"download.num_groups={better}")
        advice = f"{better} groups{note} would be even: set download: {{num_groups: {better}}}, or {command}"
    listed = first_few([str(size) for size in sizes], MAX_NAMED)
    log.warning(
        "%s do not divide evenly into %d groups, which have %s items; %s",
        *(counted(rows["speaker"].n_unique(), source), num_groups, listed, advice),
    )


def _check_folds(rows: pl.DataFrame, layout: Layout, config: Config) -> None:
    """Try every split before hours of extraction; only warn without a pipeline, because training may not follow."""
    try:
        for fold in range(1, len(fold_groups(rows["group"])) + 1):
            split_of(rows, fold, config.train)
    except TrainingError as error:
        if layout.pipeline is not None:
            raise
        log.warning("training will not be possible: %s", error)


def _warn_of_rare(rows: pl.DataFrame, classes: tuple[str, ...], modality: Modality) -> None:
    """Warn of classes that are not in every group."""
    groups, what = rows["group"].n_unique(), task_of(modality).original
    counts = rows.group_by("label").agg(pl.len(), pl.col("group").n_unique()).rows()
    rare = []
    for name, items, places in sorted(counts, key=lambda row: classes.index(row[0])):
        if places < groups:
            rare.append(f"{name} ({counted(items, what)} in {places} of {groups} groups)")
    if rare:
        log.warning(
            "some folds train or test no item of class %s; download.classes can leave it out",
            first_few(rare, MAX_NAMED),
        )


def _log_summary(table: UtteranceTable) -> None:
    rows = table.rows
    groups = dict(rows.group_by("group").len().iter_rows())
    names = sorted(groups) if is_official(rows["group"]) else fold_groups(rows["group"])
    facts = [f"{rows.height} {table.task.clip if 'clip_id' in rows.columns else table.task.item}s"]
    if table.modality == "speech":
        facts.append(f"{float(rows['duration_s'].sum()) / 3600.0:.2f} h")
    elif table.modality == "tokens":
        facts.append(f"{rows['sentence'].n_unique():,} sentences")
    elif table.modality == "text":
        facts.append(f"{int(rows['text'].str.len_chars().sum()) / 1e6:.2f} million characters")
    own = "sentence" if table.modality == "tokens" else "utterance_id"
    if (rows["speaker"] != rows[own]).any():  # otherwise the speakers are unknown
        source = table.task.with_sources(rows["utterance_id"], rows["speaker"]).source
        facts.append(counted(rows["speaker"].n_unique(), source))
    log.info("corpus '%s': %s", table.corpus, ", ".join(facts))
    log.info("classes: %s", class_counts(rows, table.classes))
    log.info("groups: %s", ", ".join(f"{name} {groups[name]}" for name in names))
