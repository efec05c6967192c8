"""What can run on this machine: `data/inventory/<pipeline>.json` = {pipeline, runs, reason, fix} for every pipeline.

A pipeline is left out where its corpus is not registered and cannot be obtained, its encoder's weights are neither in
the local cache nor reachable, or it needs more GPU memory than there is. DVC runs this first every time: what is left
out says why (`daamctl.artifacts.skipped`), and runs once the reason is gone. Neither torch nor transformers is
imported; it looks for files, asks each server one question, all at once, and nvidia-smi where a pipeline wants a GPU.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from daamctl.artifacts.io import write_json
from daamctl.artifacts.skipped import Obstacle, inventory_file
from daamctl.config import PARAMS_FILE, PIPELINES_DIR, Config, inspect_config, read_yaml
from daamctl.corpora import CORPORA
from daamctl.corpora.base import Corpus
from daamctl.corpora.fetch import is_whole
from daamctl.corpora.sources import MANIFEST, source_of
from daamctl.encoders import ENCODERS
from daamctl.encoders.encoder_size import check_name, is_cached
from daamctl.errors import ConfigError, EncoderError

WAIT_S = 4.0
"""How long servers may take to answer, all together."""
HUB = "https://huggingface.co"
"""Address of the Hugging Face hub; HF_ENDPOINT may lead elsewhere, HF_HUB_OFFLINE nowhere."""


@dataclass(frozen=True)
class Fetched:
    """Something that is not here and must be fetched.

    Args:
        url: where from.
        obstacle: what stands in the way where that cannot be reached.
    """

    url: str
    obstacle: Obstacle


def run(root: Path, pipelines: list[str] | None = None) -> dict[str, Obstacle | None]:
    """Look what can run, and write it down.

    Args:
        root: project folder.
        pipelines: names; None: those of params.yaml, and what was written of others is removed.

    Returns:
        Pipeline -> what stands in its way, or None.
    """
    names = [str(name) for name in read_yaml(root / PARAMS_FILE).get("pipelines") or []]
    needs = {name: list(_needs(root, name)) for name in (pipelines if pipelines is not None else names)}
    reached = _reached({_server(need.url) for found in needs.values() for need in found if isinstance(need, Fetched)})
    verdicts = {name: _join([*_lacking(found, reached)]) for name, found in needs.items()}
    for name, obstacle in verdicts.items():
        reason, fix = (obstacle.reason, obstacle.fix) if obstacle else (None, None)
        write_json(
            inventory_file(root, name), {"pipeline": name, "runs": obstacle is None, "reason": reason, "fix": fix}
        )
    for path in inventory_file(root, "").parent.glob("*.json"):
        if path.stem not in {*names, *verdicts}:
            path.unlink()
    return verdicts


def lacking(root: Path, config: Config) -> dict[str, Obstacle | None]:
    """What a pipeline lacks on this machine, the corpus and the encoder each by itself; nothing is written.

    Args:
        root: project folder.
        config: all settings.

    Returns:
        `corpus` and `encoder` -> what stands in the way, or None; a GPU counts as the encoder's.
    """
    needs = {"corpus": list(_corpus(root, config)), "encoder": [*_encoder(config), *_gpu(config)]}
    reached = _reached({_server(need.url) for found in needs.values() for need in found if isinstance(need, Fetched)})
    return {name: _join([*_lacking(found, reached)]) for name, found in needs.items()}


def _lacking(needs: list[Obstacle | Fetched], reached: Collection[str]) -> Iterator[Obstacle]:
    for need in needs:
        if isinstance(need, Obstacle):
            yield need
        elif _server(need.url) not in reached:
            yield need.obstacle


def _join(obstacles: list[Obstacle]) -> Obstacle | None:
    """All of them as one, each fix once."""
    if not obstacles:
        return None
    fixes = dict.fromkeys(obstacle.fix for obstacle in obstacles if obstacle.fix)
    return Obstacle("; ".join(obstacle.reason for obstacle in obstacles), "; ".join(fixes) or None)


def _needs(root: Path, pipeline: str) -> Iterator[Obstacle | Fetched]:
    """What a pipeline lacks here, and what it would have to fetch."""
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


def _corpus(root: Path, config: Config) -> Iterator[Obstacle | Fetched]:
    """As `daamctl download` looks for it: the settings' own place, the registered one, then fetched or made."""
    corpus: Corpus = CORPORA.load(config.download.corpus)
    given = config.download.source
    place = root / Path(given).expanduser() if given is not None else source_of(root, corpus.name)
    own = root / "data" / "corpora" / corpus.name
    if corpus.obtain is not None and given is None and place in (None, own):
        if corpus.url is not None and not is_whole(own):
            host = urlsplit(corpus.url).hostname
            reason = f"corpus '{corpus.name}' is not on this machine, and {host} cannot be reached"
            yield Fetched(corpus.url, Obstacle(reason, corpus.how_to_get))
    elif place is None:
        yield Obstacle(f"corpus '{corpus.name}' is not on this machine", corpus.how_to_get)
    elif not (place.exists() if corpus.name == MANIFEST else place.is_dir()):  # a table, or a folder of images
        yield Obstacle(f"corpus '{corpus.name}' should be at {place}, which is not there", corpus.how_to_get)


def _encoder(config: Config) -> Iterator[Obstacle | Fetched]:
    name = config.extract.encoder
    hub_id = ENCODERS.load(name).hub_id if name in ENCODERS else name
    if config.extract.weights == "random" or hub_id is None:
        return
    try:
        check_name(name)
    except EncoderError as error:
        yield Obstacle(error.message, error.fix)
        return
    if name not in ENCODERS and Path(name).expanduser().is_dir():
        return
    if not is_cached(hub_id, config.extract.revision):
        at = f" --revision {config.extract.revision}" if config.extract.revision else ""
        reason = f"encoder '{hub_id}' is not in the local cache, and the Hugging Face hub cannot be reached"
        yield Fetched(f"{HUB}/{hub_id}", Obstacle(reason, f"with network: hf download {hub_id}{at}"))


def _gpu(config: Config) -> Iterator[Obstacle]:
    wanted = config.extract.min_gpu_memory_gb
    if wanted and (there := gpu_memory_gb()) < wanted:
        met = f"here are {there:.0f} GB" if there else "here is none"
        fix = "run it on another machine, or set extract.min_gpu_memory_gb lower to try all the same"
        yield Obstacle(f"encoder '{config.extract.encoder}' needs {wanted:g} GB of GPU memory, {met}", fix)


def gpu_memory_gb() -> float:
    """Memory of all GPUs that CUDA_VISIBLE_DEVICES leaves, in GB, as nvidia-smi says; 0 without it."""
    words = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return 0.0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    wanted = None if visible is None else [word.strip() for word in visible.split(",")]
    total = 0.0
    for line in done.stdout.splitlines():
        index, uuid, mebibytes = (word.strip() for word in line.split(","))
        chosen = wanted is None or index in wanted or any(word and uuid.startswith(word) for word in wanted)
        if chosen and mebibytes.isdecimal():
            total += int(mebibytes) * 2**20 / 1e9
    return total


def _reached(urls: Collection[str]) -> set[str]:
    """Those of the servers that answer in time; all are asked at once, and one that hangs is left behind."""
    reached: set[str] = set()

    def ask(url: str) -> None:
        if _answers(url):
            reached.add(url)

    threads = [threading.Thread(target=ask, args=(url,), daemon=True) for url in sorted(urls)]
    for thread in threads:
        thread.start()
    end = time.monotonic() + WAIT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return set(reached)


def _answers(url: str) -> bool:
    """Whether a server is there; of what it says of this address, only a refusal counts (a proxy's, or its own)."""
    import requests
    from huggingface_hub.constants import ENDPOINT, HF_HUB_OFFLINE

    if url == HUB and HF_HUB_OFFLINE:
        return False
    try:
        status = requests.head(ENDPOINT if url == HUB else url, timeout=WAIT_S, allow_redirects=True).status_code
    except requests.RequestException:
        return False
    return status < 500 and status not in (403, 407)


def _server(url: str) -> str:
    """What to ask: the hub as such, of others the very address."""
    return HUB if url.startswith(HUB) else url
