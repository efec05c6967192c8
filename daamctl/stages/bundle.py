"""A run in one file that others can check (docs/reports.md#bundles), and the check.

A bundle is a zip file and an RO-Crate. Unpacked it is a project without weights and embeddings, so `verify` evaluates
it again as the stage does, and compares the tables.
"""

from __future__ import annotations

import hashlib
import html
import io
import json
import logging
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

import polars as pl
import pyarrow.parquet as pq
import yaml

from daamctl.artifacts.evaluation import FILE, Evaluation, read_evaluation
from daamctl.artifacts.results import RESULT, Fold
from daamctl.artifacts.runs import find_run
from daamctl.artifacts.scores import OF_EVALUATE, read_table, table_file
from daamctl.artifacts.terms import encoder_label, listed, without_path
from daamctl.config import Config
from daamctl.corpora import CORPORA
from daamctl.corpora.fetch import COMPLETED, unpack
from daamctl.encoders.licence import licence_of
from daamctl.errors import ArtifactError
from daamctl.evaluation.consistency import other_settings, scored_folds
from daamctl.evaluation.scores import csv_of
from daamctl.reporting.methods import methods_text
from daamctl.reporting.verdict import source
from daamctl.stages import evaluate
from daamctl.store.differences import by_row, differences
from daamctl.store.files import atomic_path, check_output, read_json, sha256_file
from daamctl.store.provenance import code_hash
from daamctl.store.records import SEAL, SKIPPED_FILE, hashes_of, seal_of
from daamctl.store.tables import read_frame, to_polars
from daamctl.store.version import __version__

log = logging.getLogger(__name__)

CRATE, SETTINGS, METHODS = "ro-crate-metadata.json", "params.yaml", "methods.md"
SPEC = "https://w3id.org/ro/crate/1.2"
WHAT = {SETTINGS: "All settings", METHODS: "For the methods section of a paper", FILE: "What was evaluated, and how",
        RESULT: "Settings, versions and machine of a fold", "predictions.parquet": "Predictions of a fold's test items",
        "history.parquet": "Learning curves"}  # fmt: skip
TYPES = {".json": "application/json", ".md": "text/markdown", ".yaml": "application/yaml", ".csv": "text/csv",
         ".html": "text/html", ".parquet": "application/vnd.apache.parquet"}  # fmt: skip
HOME = re.compile(r"(?:/home|/Users|[A-Za-z]:\\+Users)[/\\]+[^/\\\s\"'<>]+")
"""A home folder, which has the name of a user."""
PATH = re.compile(r"(?<![\w.:/~-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")
"""An absolute path within a text."""
LARGEST = 1 << 28
"""Bytes and values that a file of a stranger may have in memory."""
IN_MEMORY = 16
"""Bytes in memory for a byte of JSON, about."""


class Verification(NamedTuple):
    """What a check found: the run, the `version` that bundled it, sizes, and what differs, a line each.

    The last `one_sided` lines are about what only the bundle or only the recomputed evaluation has.
    """

    run: str
    version: str
    files: int
    folds: int
    rows: int
    wrong: list[str]
    one_sided: int


def version() -> str:
    """The version of daamctl, and a hash of the code that evaluates and bundles, which tells its states apart."""
    return f"{__version__}+{code_hash(__name__, 'daamctl')}"


def write(root: Path, run: str, out: Path | None = None) -> Path:
    """Write the bundle of a run, the same bytes for the same results, and verify it before it gets its name.

    Args:
        out: its file; None: the name of the run in the current folder.

    Raises:
        UnknownNameError: there is no such run.
        ArtifactError: it was not evaluated, its tables are not those of its folds, items are named by paths, or its
            file is there and is no bundle.
    """
    layout, config = find_run(root, run)
    out = out or Path(f"{layout.run_name}.zip")
    check_output(out, "a bundle", _is_own)
    folder, page = layout.stage("evaluate"), layout.stage("report") / "report.html"
    evaluation = read_evaluation(folder)
    folds, stale = scored_folds(layout, config, evaluation)
    if stale:
        raise ArtifactError(f"'{run}' cannot be bundled: {stale[0]}")
    others = other_settings(layout, config, evaluation, folds)
    paths = [folder / FILE, *(folder / name for name in evaluation.files)]
    paths += [layout.method(method) / SKIPPED_FILE for method in evaluation.skipped]
    same = {method for group in evaluation.fairness.identical for method in group.methods}
    for fold in folds:
        fold.check()
        kept = {"predictions.parquet", "history.parquet"}
        if fold.result["run"]["method"] in same:  # `evaluate` says why, from these maps
            kept |= {"density.safetensors"} & set(fold.result["files"])
        paths += [fold.folder / name for name in (RESULT, *kept)]
    report = layout.report_settings
    read = read_json(report).get("inputs", {}) if report.is_file() else {}  # earlier versions record none
    if page.is_file() and hashes_of(layout.data, [folder / FILE]).items() <= read.items():
        paths.append(page)
    elif page.is_file():
        what = "%s is not known to be of this evaluation and left out; write it again, then bundle: %s"
        log.warning(what, page.name, layout.command("report"))
    contents = {path.relative_to(layout.root).as_posix(): path.read_bytes() for path in paths}
    settings = {**config.model_dump(mode="json"), "pipelines": [layout.pipeline] if layout.pipeline else []}
    contents[SETTINGS] = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True).encode()
    if layout.pipeline:
        contents[f"pipelines/{layout.pipeline}.yaml"] = f"# All settings are in {SETTINGS}.\n".encode()
    for name in OF_EVALUATE:
        contents[f"tables/{name}.csv"] = csv_of(read_table(table_file(folder, name))).encode()
    title = CORPORA.load(config.download.corpus).title
    contents[METHODS] = methods_text(evaluation, config, corpus=title).encode()
    hidden = _paths(layout.root, config, folds, evaluation)
    contents = {name: _without(name, content, hidden) for name, content in contents.items()}
    date = max(fold.result["meta"].get("date", "") for fold in folds)
    files = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in contents.items()}
    licence = evaluation.provenance.encoder.get("licence") if evaluation.given else licence_of(config.extract)
    crate = _crate(evaluation, config, files, date, licence or "unknown")
    contents[CRATE] = _without(CRATE, crate.encode(), hidden)
    with atomic_path(out) as temporary:
        with zipfile.ZipFile(temporary, "w") as archive:
            for name in sorted(contents):
                info = zipfile.ZipInfo(name)  # of 1980, whatever the clock says
                info.create_system, info.external_attr = 3, 0o100644 << 16
                archive.writestr(info, contents[name], zipfile.ZIP_DEFLATED, 6)
        if wrong := verify(temporary).wrong:
            # files have been checked by their seals, so an option such as --set is to blame, or another version
            what = f"the evaluation of '{run}' does not follow from its folds and the settings in its files. "
            again = f"{layout.command('evaluate')}; {layout.command('report')}"
            raise ArtifactError(
                what + (" ".join(others) or wrong[0]), fix=f"make it and the report again, then bundle: {again}"
            )
    for note in others:
        log.warning(note)
    return out


def _is_own(path: Path) -> bool:
    """Whether a file is a bundle, and not an RO-Crate of another tool."""
    with zipfile.ZipFile(path) as archive:
        return b'"#daamctl"' in archive.read(CRATE)


def verify(path: Path) -> Verification:
    """Check hashes and seals of a bundle, and compute all of its tables again from its predictions.

    Raises:
        ArtifactError: it is no bundle, too damaged or too large to be read, or of a version that this one cannot read.
    """
    if path.is_dir():
        raise ArtifactError(
            f"{path} is a folder, a bundle is one file", fix="give the zip file: daamctl verify FILE.zip"
        )
    if not path.is_file():
        raise ArtifactError(f"no file {path}", fix="write one: daamctl bundle RUN")
    made_by = ""
    with TemporaryDirectory(prefix="daamctl-") as temporary:
        root = Path(temporary).resolve() / "bundle"
        try:
            if not zipfile.is_zipfile(path):
                raise ArtifactError("it is not a zip file")
            with zipfile.ZipFile(path) as archive:
                names = [COMPLETED, *(name.casefold() for name in archive.namelist())]
            if len(names) > len(set(names)):
                raise ArtifactError(f"it has two members of one name, or one named {COMPLETED}")
            for part in unpack(path, root).rglob("*"):
                _check_size(part)
            crate = read_json(root / CRATE)
            made = next(one["version"] for one in crate["@graph"] if one["@id"] == "#daamctl")
            made_by = f", which daamctl {made} wrote" if made != version() else ""
            return _verified(root, crate, made)
        except Exception as error:  # files of strangers fail in many ways
            reason = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
            reason = reason.replace(f"{root}/", "").partition("\n")[0]
            what = f"{path} cannot be verified{_printable(f'{made_by}: {reason}')}"
            raise ArtifactError(what, fix="get the file again, or write one: daamctl bundle RUN") from error


def _verified(root: Path, crate: dict[str, Any], made: str) -> Verification:
    """The check of an unpacked bundle."""
    entities = {one["@id"]: one for one in crate["@graph"]}
    hashes = {unquote(name): one["sha256"] for name, one in entities.items() if one["@type"] == "File"}
    there = {path.relative_to(root).as_posix(): path for path in root.rglob("*") if path.is_file()}
    del there[CRATE], there[COMPLETED]
    files = {name: (path.stat().st_size, sha256_file(path)) for name, path in there.items()}
    wrong = [f"{name}: missing" for name in hashes if name not in files]
    wrong += [f"{name}: its SHA-256 is not in {CRATE}" for name, one in files.items() if hashes.get(name) != one[1]]
    folders = [path.parent for path in root.glob(f"data/evaluate/*/{FILE}")]
    if len(folders) != 1:
        raise ArtifactError(f"it has {len(folders)} files {FILE}, not one")
    folder = folders[0]
    layout, config = find_run(root, folder.name)
    try:
        read_evaluation(folder)
    except ArtifactError as error:
        wrong.append(error.message.replace(f"{root}/", ""))
    evaluation, history = evaluate.score(layout, config)
    stored, again = read_json(folder / FILE), json.loads(json.dumps(evaluation.as_json()))
    again |= {name: stored[name] for name in (SEAL, "files", "leaks") if name in stored}  # the seal has checked them
    found = list(differences(stored, again, place=FILE))
    tables = {**evaluation.scores.frames, "history": history}
    for name, table in tables.items():
        stored, csv = read_frame(table_file(folder, name))[0], root / "tables" / f"{name}.csv"
        shown, same = (pl.read_csv(text, schema=table.schema) for text in (csv.read_bytes(), csv_of(table).encode()))
        found += differences(by_row(stored, table), by_row(table), place=name)
        found += differences(by_row(shown, same), by_row(same), place=csv.name)
    if made == version():
        lines = methods_text(evaluation, config, corpus=CORPORA.load(config.download.corpus).title).splitlines()
        found += differences((root / METHODS).read_text(encoding="utf-8").splitlines(), lines, place=METHODS)
        if not wrong:  # else its hashes differ, too
            known = entities["./"].get("datePublished", ""), entities["#encoder"]["license"]
            found += differences(crate, json.loads(_crate(evaluation, config, files, *known)), place=CRATE)
    found.sort(key=lambda one: None in (one.first, one.second))  # changed figures first
    for one in found:
        before, after = ("nothing" if value is None else repr(value)[:80] for value in (one.first, one.second))
        wrong.append(f"{one.place}: {before} in the bundle, recomputed {after}")
    folds = sum(len(entry.runs) for entry in evaluation.methods.values())
    rows = sum(map(len, tables.values()))
    name, made, *wrong = map(_printable, [layout.run_name, made, *wrong])
    one_sided = sum(None in (one.first, one.second) for one in found)
    return Verification(name, made, len(there), folds, rows, wrong, one_sided)


def _check_size(path: Path) -> None:
    """Refuse a file that grows beyond reason when it is read: a few bytes can stand for billions of values."""
    size = path.stat().st_size * IN_MEMORY if path.suffix == ".json" else 0
    if path.suffix == ".parquet":
        with pq.ParquetFile(path) as file:
            groups = map(file.metadata.row_group, range(file.num_row_groups))
            columns = [group.column(index) for group in groups for index in range(group.num_columns)]
            size = sum(column.num_values for column in columns)
            longest = max([1, *(column.total_uncompressed_size for column in columns)])  # perhaps one text in all rows
            for batch in file.iter_batches(LARGEST // longest + 1) if size <= LARGEST else ():
                size += batch.nbytes
                if size > LARGEST:
                    break
    if size > LARGEST:
        raise ArtifactError(f"{path} needs more than {LARGEST >> 20} MB of memory")


def _printable(text: str) -> str:
    """A text of a stranger without characters that a terminal obeys."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text)


def _paths(root: Path, config: Config, folds: Sequence[Fold], evaluation: Evaluation) -> dict[str, str]:
    """Paths of this machine in settings, facts about encoders and notes -> what replaces them, longest first."""
    settings = [config.model_dump(), *(fold.result["run"]["config"] for fold in folds)]
    values = [part.get(name) for one in settings for part, name in
              ((one.get("download", {}), "source"), (one.get("extract", {}), "encoder"))]  # fmt: skip
    values += [value for fold in folds for value in fold.result["meta"]["encoder"].values()]
    found = {one: str(without_path(one)) for one in values if isinstance(one, str)}
    found |= {path: Path(path).name for note in evaluation.skipped.values() for path in PATH.findall(json.dumps(note))}
    found |= {f"{root}/": "", str(root): ".", str(Path.home()): "~"}
    # a container may have the root as home or project: every path begins with it
    known = {path: name for path, name in found.items() if path != name and path.strip("/")}
    return dict(sorted(known.items(), key=lambda one: -len(one[0])))


def _without(name: str, content: bytes, hidden: Mapping[str, str]) -> bytes:
    """A file without paths of this machine; a record is sealed again if it had some.

    Raises:
        ArtifactError: a table names a home folder.
    """
    if name.endswith(".parquet"):
        table = to_polars(pq.read_table(io.BytesIO(content)))
        texts = (text for column in table.select(pl.col(pl.String)) for text in column.unique().drop_nulls())
        if private := next((text for text in texts if HOME.search(text)), None):
            what = f"{name} has the name '{private}', a path of this machine"
            raise ArtifactError(what, fix="name the items: give the manifest a column utterance_id, and run it again")
    if Path(name).suffix not in TYPES or name.endswith(".parquet"):
        return content
    before = text = content.decode()
    for path, shown in hidden.items():
        for form in {path, html.escape(path), json.dumps(path, ensure_ascii=False)[1:-1]}:
            text = re.sub(rf"(?<![\w.~-]){re.escape(form)}(?![\w-])", shown.replace("\\", "/"), text)
    text = HOME.sub("~", text)
    if text != before and name.endswith(".json") and SEAL in (record := json.loads(text)):
        text = json.dumps({**record, SEAL: seal_of(record)}, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode()


def _crate(
    evaluation: Evaluation, config: Config, files: Mapping[str, tuple[int, str]], date: str, licence: str
) -> str:
    """The metadata of the RO-Crate (https://w3id.org/ro/crate/1.2).

    Args:
        files: name -> bytes and SHA-256.
        date: of the last training, which RO-Crate wants; empty: not recorded.
        licence: of the encoder, as far as the machine knows it.
    """
    made, corpus = evaluation.provenance, CORPORA.load(config.download.corpus)
    encoder = encoder_label(made.encoder, config.section("extract"))
    weights = made.encoder.get("weights_sha256") or made.encoder.get("sha256")
    versions = ", ".join(f"{name} {version}" for name, version in made.versions.items())
    entities: list[dict[str, Any]] = [
        {"@id": CRATE, "about": {"@id": "./"}, "conformsTo": {"@id": SPEC}},
        {"@id": "./", "@type": "Dataset", "name": f"Results of {evaluation.run}",
         "description": f"{source(evaluation)}: settings, predictions, tables. Check them with: daamctl verify FILE",
         **({"datePublished": date} if date else {}), "license": {"@id": "#licence"}, "mentions": {"@id": "#daamctl"},
         "isBasedOn": [{"@id": "#corpus"}, {"@id": "#encoder"}],
         "hasPart": [{"@id": quote(name)} for name in sorted(files)]},
        {"@id": "#licence", "name": "Not stated", "description": "Who publishes this bundle states its licence."},
        {"@id": "#corpus", "name": evaluation.corpus_name, "description": corpus.title, "license": corpus.licence},
        {"@id": "#encoder", "name": encoder, "description": f"SHA-256 {weights}", "license": licence},
        {"@id": "#daamctl", "name": "daamctl", "version": version(),
         "description": f"Trained with daamctl {listed(made.daamctl)} ({versions}; commit {listed(made.git_commits)}) "
         f"on {listed(made.devices)} in {listed(made.precisions)}"},
    ]  # fmt: skip
    parts = [
        {"@id": quote(name), "@type": "File", "name": name, "description": WHAT.get(Path(name).name, "Results"),
         "encodingFormat": TYPES.get(Path(name).suffix, "application/octet-stream"), "contentSize": str(size),
         "sha256": sha256}
        for name, (size, sha256) in sorted(files.items())
    ]  # fmt: skip
    graph = [*({"@type": "CreativeWork", **one} for one in entities), *parts]
    return json.dumps({"@context": f"{SPEC}/context", "@graph": graph}, indent=1, ensure_ascii=False) + "\n"
