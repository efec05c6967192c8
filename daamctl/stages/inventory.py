"""What every stage depends on besides results, in small files that DVC compares: `data/check/<pipeline>/`.

`machine.json` = {pipeline, runs, reason, fix} says whether the pipeline can run here. A pipeline is skipped if its
corpus is neither registered nor downloadable, if the weights of its encoder are neither in the local cache nor
reachable, or if it needs more GPU memory than there is. Skipped stages record the reason (`daamctl.artifacts.skipped`)
and run once it is gone. `<stage>.json`, or `<stage>-<entry>.json`, has the settings that a stage reads, the hash of the
code that it runs again for, and what may keep it from running. Editing the settings of one method therefore does not
invalidate the extraction, and editing one pipeline does not invalidate another.

DVC runs this every time before all stages. This module imports neither torch nor transformers: it looks for files,
sends one request to each server in parallel, and asks torch in a process of its own if a pipeline needs a GPU.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from daamctl.artifacts.skipped import MACHINE, Obstacle, check_folder
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, inspect_config, read_yaml
from daamctl.config.corpus_keys import FILES
from daamctl.config.keys import shared_with_finetuning, watched_settings
from daamctl.config.schema import Section
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.corpora.fetch import is_whole
from daamctl.corpora.sources import source_of
from daamctl.data.stage_table import STAGES, steps_of
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import HUB, WAIT_S, answers, check_name, folder_called, is_cached
from daamctl.errors import ConfigError, CorpusError, EncoderError
from daamctl.methods import METHODS, resolve_method, settings_of
from daamctl.store.files import content_key, expanded, remove_others, sha256_file, write_json
from daamctl.store.provenance import code_hash

ASK_TORCH = (
    "import torch; "
    "print(sum(torch.cuda.get_device_properties(one).total_memory for one in range(torch.cuda.device_count())))"
)
Need = tuple[Obstacle, str | None]
"""What keeps a pipeline from running, and the address of a server that has what is missing; None: there is none."""


def run(root: Path, pipelines: list[str] | None = None) -> dict[str, Obstacle | None]:
    """Find out which pipelines can run, and write what DVC compares.

    A pipeline with wrong settings is not left out: its files say what is wrong, and its stages fail.

    Args:
        pipelines: names; None: the pipelines of params.yaml, and files of other pipelines are removed.

    Returns:
        Pipeline -> reason why it cannot run, or None.
    """
    listed = [str(name) for name in read_yaml(root / PARAMS_FILE).get("pipelines") or []]
    names = pipelines if pipelines is not None else listed
    code = {part: _code(part) for part in sorted({spec.code for spec in STAGES.values() if spec.code})}
    needs: dict[str, list[Need]] = {}
    settings: dict[str, dict[tuple[str, str | None], dict[str, Any]]] = {}
    wrong: dict[str, list[str]] = {}
    for name in names:
        try:
            config, problems = inspect_config(root, name)
            if config is None or problems:
                wrong[name] = problems
                continue
            lacking = [*_corpus(root, config), *_encoder(config), *_gpu(config)]
            settings[name] = {step: _settings(config, *step) for step in steps_of(config)}
            needs[name] = lacking
        except ConfigError as error:
            wrong[name] = [str(error)]
    verdicts = _judge(needs)
    for name, read in settings.items():
        obstacle = verdicts[name]
        why = {"reason": None, "fix": None} if obstacle is None else asdict(obstacle)
        machine = {"runs": obstacle is None, **why}
        files = {MACHINE: {"pipeline": name, **machine}}
        for (stage, entry), own in read.items():
            spec = STAGES[stage]
            own |= {"code": code[spec.code]} if spec.code else {}
            own |= {"machine": machine} if spec.needs_machine else {}
            files[f"{stage}.json" if entry is None else f"{stage}-{entry}.json"] = own
        _write(check_folder(root, name), files)
    for name, problems in wrong.items():
        folder = check_folder(root, name)
        known = {"download.json", *(path.name for path in folder.glob("*.json"))} - {MACHINE}
        # so that the stages are out of date, run, and fail with this message
        _write(folder, {file: {"wrong": problems} for file in known})
        verdicts[name] = Obstacle("its settings are wrong", f"correct {PIPELINES_DIR}/{name}.yaml: daamctl check")
    remove_others(check_folder(root, ""), {*listed, *names}, folders=True)
    return {name: verdicts[name] for name in names}


def _settings(config: Config, stage: str, entry: str | None) -> dict[str, Any]:
    """Exactly the settings that a stage, or its part for one method, reads."""
    if entry is None:
        shown = {} if stage != "report" or config.extract.name is None else {"encoder": config.extract.name}
        return {what: _watched(config, what) for what in STAGES[stage].watches} | shown
    if stage == "finetune":
        # It opens the encoder itself and shares some settings with `train`, which lists the seeds in effect.
        own = config.for_adapter(entry)
        finetune = watched_settings(own, stage)
        del finetune["seeds"]
        train = {**shared_with_finetuning(own), "seeds": list(own.seeds_of("finetune"))}
        return {"finetune": finetune, "train": train, "extract": watched_settings(own, "extract")}
    read = {stage: _watched(config, stage)}
    if stage == "train":
        read["settings"] = settings_of(entry, config.method_settings)
        if modules := METHODS.modules_of(name := resolve_method(entry)[0]):
            read["package"] = code_hash(METHODS.module_of(name), modules)
    return read


def _watched(config: Config, what: str) -> Any:
    """What DVC compares: a section of the settings, a list of the pipeline, or the seeds of all trainings."""
    if what == "seeds":
        seeds = {"train": list(config.seeds_of("train"))}
        if config.finetunes:
            seeds["finetune"] = list(config.seeds_of("finetune"))
        return seeds
    found = getattr(config, what)
    return watched_settings(config, what) if isinstance(found, Section) else list(found)


def _code(part: str) -> str:
    """Hash of the code of a part of the package, wherever daamctl is installed."""
    folder = Path(__file__).parents[1] / part
    return content_key({path.relative_to(folder).as_posix(): sha256_file(path) for path in folder.rglob("*.py")})


def _write(folder: Path, parts: Mapping[str, Any]) -> None:
    """Write files of JSON and remove others. DVC hashes a file again if it is written, so those that are equal stay."""
    for name, part in parts.items():
        path = folder / name
        try:
            # through JSON, which turns tuples into lists and keys into strings
            same = json.loads(path.read_bytes()) == json.loads(json.dumps(part))
        except (OSError, ValueError):
            same = False
        if not same:
            write_json(path, part)
    remove_others(folder, parts)


def blockers(root: Path, config: Config) -> dict[str, Obstacle | None]:
    """What a pipeline lacks here, or None: for `corpus`, and for `encoder` with the GPU it needs. Writes nothing."""
    return _judge({"corpus": list(_corpus(root, config)), "encoder": [*_encoder(config), *_gpu(config)]})


def require(root: Path, config: Config, needs: Collection[str]) -> None:
    """Refuse to start without what work needs: `corpus`, `encoder`.

    Raises:
        CorpusError, EncoderError: it cannot be had here.
    """
    found = blockers(root, config)
    for name, kind in {"corpus": CorpusError, "encoder": EncoderError}.items():
        if name in needs and (obstacle := found[name]) is not None:
            raise kind(obstacle.reason, fix=obstacle.fix)


def _judge(needs: Mapping[str, Sequence[Need]]) -> dict[str, Obstacle | None]:
    """Name -> what is missing, after asking all servers at once, or None."""
    reached = _reached({url for found in needs.values() for _, url in found if url is not None})
    verdicts: dict[str, Obstacle | None] = {}
    for name, found in needs.items():
        obstacles = [obstacle for obstacle, url in found if url not in reached]
        fixes = dict.fromkeys(one.fix for one in obstacles if one.fix)
        reason = "; ".join(one.reason for one in obstacles)
        verdicts[name] = Obstacle(reason, "; ".join(fixes) or None) if obstacles else None
    return verdicts


def _corpus(root: Path, config: Config) -> Iterator[Need]:
    """Search in the order of `daamctl download`: folder of the settings, registered folder, then download."""
    corpus: Corpus = CORPORA.load(config.download.corpus)
    given = config.download.source
    place = root / expanded(given) if given is not None else source_of(root, corpus.name)
    own = root / "data" / "corpora" / corpus.name
    if corpus.obtain is not None and given is None and place in (None, own):
        # a corpus that is generated needs no server
        if corpus.url is not None and not is_whole(own):
            host = urlsplit(corpus.url).hostname
            reason = f"corpus '{corpus.name}' is not on this machine, and {host} cannot be reached"
            yield Obstacle(reason, corpus.how_to_get), corpus.url
    elif place is None:
        yield Obstacle(f"corpus '{corpus.name}' is not on this machine", corpus.how_to_get), None
    elif not (place.exists() if corpus.name in FILES else place.is_dir()):  # a manifest may be a folder, too
        again = corpus.obtain is not None and given is None
        fix = f"daamctl download {corpus.name} --force obtains it again" if again else corpus.how_to_get
        yield Obstacle(f"corpus '{corpus.name}' should be at {place}, but that does not exist", fix), None


def _encoder(config: Config) -> Iterator[Need]:
    if not config.has_encoder:
        return
    name = config.extract.encoder
    source = ENCODERS[name].source if name in ENCODERS else name
    if config.extract.weights == "random" or source is None:
        return
    try:
        check_name(name)
    except EncoderError as error:
        yield Obstacle(error.message, error.fix), None
        return
    if folder_called(source).is_dir():
        return
    if not is_cached(source, config.extract.revision):
        revision = config.extract.revision
        at, below = (f" --revision {revision}", f"/revision/{revision}") if revision else ("", "")
        absent = "not in the local cache" if name in ENCODERS else "neither a folder here nor in the local cache"
        reason = f"encoder '{source}' is {absent}, and the Hugging Face hub lacks it or cannot be reached"
        yield Obstacle(reason, f"with network: hf download {source}{at}"), f"{HUB}/api/models/{source}{below}"


def _gpu(config: Config) -> Iterator[Need]:
    wanted = config.extract.min_gpu_memory_gb if config.has_encoder else 0.0
    if wanted and (there := gpu_memory_gb()) < wanted:
        found = f"{there:.0f} GB" if there else "no GPU"
        reason = f"encoder '{config.extract.encoder}' needs {wanted:g} GB of GPU memory, this machine has {found}"
        yield Obstacle(reason, "run it on another machine, or lower extract.min_gpu_memory_gb to try anyway"), None


def gpu_memory_gb() -> float:
    """Memory in GB of all GPUs that torch can use, slices of a GPU (MIG) too; 0 without an NVIDIA driver.

    A process of its own asks torch, which takes seconds to load and is not needed on a machine without a GPU.
    """
    if shutil.which("nvidia-smi") is None:
        return 0.0
    try:
        done = subprocess.run([sys.executable, "-c", ASK_TORCH], capture_output=True, text=True, timeout=60, check=True)
        return int(done.stdout) / 1e9
    except (OSError, ValueError, subprocess.SubprocessError):
        return 0.0


def _reached(urls: Collection[str]) -> set[str]:
    """Servers that answer in time. All are asked in parallel, and servers that hang are ignored."""
    reached: set[str] = set()

    def ask(url: str) -> None:
        if answers(url):
            reached.add(url)

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in sorted(urls)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + WAIT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    # a copy: threads of servers that hang may still add to it
    return set(reached)
