"""Which pipelines can run on this machine: `data/inventory/<pipeline>.json` = {pipeline, runs, reason, fix}.

`data/inventory/code/` holds hashes of the code that DVC watches, wherever daamctl is installed.

A pipeline is skipped if its corpus is neither registered nor downloadable, if the weights of its encoder are neither in
the local cache nor reachable, or if it needs more GPU memory than there is. DVC runs this every time before all stages.
Skipped stages record the reason (`daamctl.artifacts.skipped`) and run once it is gone. This module imports neither
torch nor transformers: it looks for files, sends one request to each server in parallel, and asks torch in a process of
its own if a pipeline needs a GPU.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from daamctl.artifacts.skipped import Obstacle, inventory_file
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, inspect_config, read_yaml
from daamctl.config.corpus_keys import FILES
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.corpora.fetch import is_whole
from daamctl.corpora.sources import source_of
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import HUB, WAIT_S, answers, check_name, is_cached
from daamctl.errors import ConfigError, CorpusError, EncoderError
from daamctl.store.files import sha256_file, write_json

WATCHED_CODE = ("methods", "adapters")
"""Parts of the package on which stages of dvc.yaml depend."""
ASK_TORCH = (
    "import torch; "
    "print(sum(torch.cuda.get_device_properties(one).total_memory for one in range(torch.cuda.device_count())))"
)


@dataclass(frozen=True)
class RequiredDownload:
    """A download that a pipeline needs; the obstacle is reported if the source cannot be reached."""

    url: str
    obstacle: Obstacle


def run(root: Path, pipelines: list[str] | None = None) -> dict[str, Obstacle | None]:
    """Find out which pipelines can run, and write the result.

    Args:
        pipelines: names; None: the pipelines of params.yaml, and files of other pipelines are removed.

    Returns:
        Pipeline -> reason why it cannot run, or None.
    """
    names = [str(name) for name in read_yaml(root / PARAMS_FILE).get("pipelines") or []]
    verdicts = _judge({name: list(_needs(root, name)) for name in (pipelines if pipelines is not None else names)})
    for name, obstacle in verdicts.items():
        why = {"reason": None, "fix": None} if obstacle is None else asdict(obstacle)
        write_json(inventory_file(root, name), {"pipeline": name, "runs": obstacle is None, **why})
    folder = inventory_file(root, "").parent
    for path in folder.glob("*.json"):
        if path.stem not in {*names, *verdicts}:
            path.unlink()
    for part in WATCHED_CODE:
        code = Path(__file__).parents[1] / part
        hashes = {path.relative_to(code).as_posix(): sha256_file(path) for path in sorted(code.rglob("*.py"))}
        write_json(folder / "code" / f"{part}.json", hashes)
    return verdicts


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


def _judge(needs: Mapping[str, Sequence[Obstacle | RequiredDownload]]) -> dict[str, Obstacle | None]:
    """Name -> what is missing, after asking all servers at once, or None."""
    downloads = [need for found in needs.values() for need in found if isinstance(need, RequiredDownload)]
    reached = _reached({need.url for need in downloads})
    verdicts: dict[str, Obstacle | None] = {}
    for name, found in needs.items():
        obstacles = []
        for need in found:
            if isinstance(need, Obstacle):
                obstacles.append(need)
            elif need.url not in reached:
                obstacles.append(need.obstacle)
        fixes = dict.fromkeys(one.fix for one in obstacles if one.fix)
        reason = "; ".join(one.reason for one in obstacles)
        verdicts[name] = Obstacle(reason, "; ".join(fixes) or None) if obstacles else None
    return verdicts


def _needs(root: Path, pipeline: str) -> Iterator[Obstacle | RequiredDownload]:
    """What a pipeline is missing here, and what it would have to download."""
    try:
        config, problems = inspect_config(root, pipeline)
    except ConfigError:
        config, problems = None, [""]
    known = config is not None and config.download.corpus in CORPORA
    if config is None or problems or not known:
        yield Obstacle("its settings are wrong", f"correct {PIPELINES_DIR}/{pipeline}.yaml: daamctl check")
        return
    yield from _corpus(root, config)
    yield from _encoder(config)
    yield from _gpu(config)


def _corpus(root: Path, config: Config) -> Iterator[Obstacle | RequiredDownload]:
    """Search in the order of `daamctl download`: folder of the settings, registered folder, then download."""
    corpus: Corpus = CORPORA.load(config.download.corpus)
    given = config.download.source
    place = root / Path(given).expanduser() if given is not None else source_of(root, corpus.name)
    own = root / "data" / "corpora" / corpus.name
    if corpus.obtain is not None and given is None and place in (None, own):
        if corpus.url is not None and not is_whole(own):
            host = urlsplit(corpus.url).hostname
            reason = f"corpus '{corpus.name}' is not on this machine, and {host} cannot be reached"
            yield RequiredDownload(corpus.url, Obstacle(reason, corpus.how_to_get))
    elif place is None:
        yield Obstacle(f"corpus '{corpus.name}' is not on this machine", corpus.how_to_get)
    elif not (place.exists() if corpus.name in FILES else place.is_dir()):  # a manifest may be a folder, too
        yield Obstacle(f"corpus '{corpus.name}' should be at {place}, but that does not exist", corpus.how_to_get)


def _encoder(config: Config) -> Iterator[Obstacle | RequiredDownload]:
    if not config.has_encoder:
        return
    name = config.extract.encoder
    source = ENCODERS[name].source if name in ENCODERS else name
    if config.extract.weights == "random" or source is None:
        return
    try:
        check_name(name)
    except EncoderError as error:
        yield Obstacle(error.message, error.fix)
        return
    if Path(source).expanduser().is_dir():
        return
    if not is_cached(source, config.extract.revision):
        revision = config.extract.revision
        at, below = (f" --revision {revision}", f"/revision/{revision}") if revision else ("", "")
        absent = "not in the local cache" if name in ENCODERS else "neither a folder here nor in the local cache"
        reason = f"encoder '{source}' is {absent}, and the Hugging Face hub lacks it or cannot be reached"
        yield RequiredDownload(
            f"{HUB}/api/models/{source}{below}", Obstacle(reason, f"with network: hf download {source}{at}")
        )


def _gpu(config: Config) -> Iterator[Obstacle]:
    wanted = config.extract.min_gpu_memory_gb if config.has_encoder else 0.0
    if wanted and (there := gpu_memory_gb()) < wanted:
        found = f"{there:.0f} GB" if there else "no GPU"
        yield Obstacle(
            f"encoder '{config.extract.encoder}' needs {wanted:g} GB of GPU memory, this machine has {found}",
            "run it on another machine, or lower extract.min_gpu_memory_gb to try anyway",
        )


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
    return set(reached)
