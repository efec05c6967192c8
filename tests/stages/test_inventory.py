"""What can run here: corpora, weights and GPU memory, each with the command that gets it; nothing heavy imported."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import requests
import torch

from daamctl.artifacts.skipped import Obstacle, check_folder
from daamctl.config import load_config
from daamctl.corpora import CORPORA
from daamctl.corpora.sources import register
from daamctl.data.stage_table import STAGES
from daamctl.encoders import ENCODERS
from daamctl.stages import inventory
from tests.fixtures.added import SOURCE, install
from tests.fixtures.recordings import write_pipeline

ONLY_HUB = "https://huggingface.co"


@pytest.fixture(autouse=True)
def reached(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """Addresses that answer; none at first. And an empty cache of models."""
    found: set[str] = set()
    monkeypatch.setattr(inventory, "answers", lambda url: url in found)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return found


def verdict(project: Path, text: str, name: str = "mine") -> Obstacle | None:
    (project / f"pipelines/{name}.yaml").write_text(text)
    return inventory.run(project, [name])[name]


def test_every_pipeline_is_written_down(project: Path) -> None:
    (project / "params.yaml").write_text("pipelines: [demo, iemocap]\n")
    stale = project / "data/check/gone/machine.json"
    stale.parent.mkdir(parents=True)
    stale.write_text("{}")
    inventory.run(project)
    files = (project / "data/check").glob("*/machine.json")
    written = {path.parent.name: json.loads(path.read_text()) for path in files}
    assert written.pop("demo") == {"pipeline": "demo", "runs": True, "reason": None, "fix": None}
    left_out = written.pop("iemocap")
    assert (left_out["pipeline"], left_out["runs"]) == ("iemocap", False)
    assert "corpus 'iemocap' is not on this machine" in left_out["reason"]
    assert "encoder 'microsoft/wavlm-large' is not in the local cache" in left_out["reason"]
    assert "daamctl download iemocap --from DIR; with network: hf download microsoft/wavlm-large" in left_out["fix"]
    assert written == {}


def test_an_edit_of_another_package_changes_the_stages_of_its_methods(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (project / "pipelines/mine.yaml").write_text("methods: [peak, mean]\n")
    read = []
    for source in (SOURCE, SOURCE.replace("x.amax(-2)", "x.amin(-2)")):
        install(tmp_path / "site", monkeypatch, source=source)
        inventory.run(project, ["mine"])
        folder = check_folder(project, "mine")
        read.append([(folder / f"train-{name}.json").read_text() for name in ("peak", "mean")])
    assert read[0][0] != read[1][0]
    assert read[0][1] == read[1][1]


def test_an_edit_of_the_code_changes_its_hash(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    code = tmp_path / "daamctl"
    (code / "methods").mkdir(parents=True)
    (code / "methods/mha.py").write_text("first")
    monkeypatch.setattr(inventory, "__file__", str(code / "stages/inventory.py"))

    def hashes() -> dict[str, str]:
        inventory.run(project, ["demo"])
        found = {path.stem: json.loads(path.read_text()) for path in (project / "data/check/demo").glob("*.json")}
        return {stage: part["code"] for stage, part in found.items() if "code" in part}

    first = hashes()
    assert first.keys() == {"ablate", *(f"train-{name}" for name in load_config(project, "demo").methods)}
    assert hashes() == first
    (code / "methods/mha.py").write_text("second")
    second = hashes()
    assert all(second[stage] != first[stage] for stage in first)


def test_files_that_say_the_same_are_not_written_again(project: Path) -> None:
    """DVC would hash them all for every stage that somebody asks for."""
    inventory.run(project, ["demo"])
    folder = project / "data/check/demo"
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    (folder / "report.json").write_text("{")
    (folder / "gone.json").touch()
    inventory.run(project, ["demo"])
    after = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {path.name for path in after if after[path] != before[path]} == {"report.json"}
    assert json.loads((folder / "report.json").read_text()).keys() == {"report", "trained"}


def test_the_name_of_the_encoder_is_of_the_report_alone(project: Path) -> None:
    def written(text: str) -> dict[str, Any]:
        verdict(project, text)
        return {path.stem: json.loads(path.read_text()) for path in (project / "data/check/mine").glob("*.json")}

    plain, named = written(""), written("extract: {name: Mine}\n")
    assert {name for name in plain if plain[name] != named[name]} == {"report"}
    assert named["report"] == {**plain["report"], "encoder": "Mine"}


def test_what_may_keep_a_stage_from_running_is_what_it_depends_on(project: Path, reached: set[str]) -> None:
    """Else it would not run again when the reason is gone."""

    def written() -> dict[str, Any]:
        verdict(project, "extract: {encoder: wavlm-large}\nfinetunes: [ia3]\n")
        return {path.stem: json.loads(path.read_text()) for path in (project / "data/check/mine").glob("*.json")}

    offline = written()
    reached.add(f"{ONLY_HUB}/api/models/microsoft/wavlm-large")
    changed = {name for name, part in written().items() if part != offline[name]}
    needs = {name for name, spec in STAGES.items() if spec.needs_machine and spec.task in (None, "classify")}
    assert changed == {"machine", "finetune-ia3", *needs - {"finetune"}}


def test_licensed_corpus(project: Path, tmp_path: Path) -> None:
    text = "download: {corpus: iemocap}\n"
    assert verdict(project, text) == Obstacle(
        "corpus 'iemocap' is not on this machine", CORPORA.load("iemocap").how_to_get
    )
    (tmp_path / "release").mkdir()
    register(project, "iemocap", tmp_path / "release")
    assert verdict(project, text) is None
    (tmp_path / "release").rmdir()
    gone = verdict(project, text)
    assert gone is not None
    assert gone.reason == f"corpus 'iemocap' should be at {tmp_path / 'release'}, but that does not exist"
    register(project, "emodb", tmp_path / "release")
    gone = verdict(project, "download: {corpus: emodb}\n")
    assert gone is not None
    assert gone.fix == "daamctl download emodb --force obtains it again"


@pytest.mark.parametrize(
    ("corpus", "address", "host"),
    [
        ("emodb", "http://emodb.bilderbar.info/download/download.zip", "emodb.bilderbar.info"),
        ("cifar100", "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "www.cs.toronto.edu"),
        ("agnews", f"{ONLY_HUB}/datasets/fancyzhx/ag_news", "huggingface.co"),
    ],
)
def test_corpus_that_is_fetched(project: Path, reached: set[str], corpus: str, address: str, host: str) -> None:
    text = f"download: {{corpus: {corpus}}}\n"
    found = verdict(project, text)
    assert found is not None
    assert found.reason == f"corpus '{corpus}' is not on this machine, and {host} cannot be reached"
    reached.add(address)
    assert verdict(project, text) is None
    reached.clear()
    own = project / "data/corpora" / corpus
    own.mkdir(parents=True)
    (own / ".completed").touch()
    assert verdict(project, text) is None


@pytest.mark.parametrize("corpus", ["demo", "demo-text", "digits"])
def test_corpus_that_is_made_here_needs_nothing(project: Path, corpus: str) -> None:
    assert verdict(project, f"download: {{corpus: {corpus}}}\n") is None


def test_what_is_fetched_says_where_from() -> None:
    fetched = {name for name in CORPORA if CORPORA.load(name).url}
    assert fetched == {"emodb", "cifar100", "agnews", "wnut17"}
    assert all(CORPORA.load(name).obtain for name in fetched)


def test_manifest(project: Path) -> None:
    write_pipeline(project, "tones")
    assert inventory.run(project, ["tones"]) == {"tones": None}
    (project / "tones/tones.csv").unlink()
    found = inventory.run(project, ["tones"])["tones"]
    assert found is not None
    assert found.reason == f"corpus 'manifest' should be at {project}/tones/tones.csv, but that does not exist"


def cache(tmp_path: Path, hub_id: str, *files: str, index: dict[str, Any] | None = None) -> None:
    folder = tmp_path / "hub" / f"models--{hub_id.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True, exist_ok=True)
    (folder / "refs/main").write_text("abc")
    (folder / "snapshots/abc").mkdir(parents=True, exist_ok=True)
    for name in files:
        (folder / "snapshots/abc" / name).write_text(json.dumps(index) if name.endswith("index.json") else "{}")


def test_folder_of_images(project: Path) -> None:
    text = "download: {corpus: manifest, source: pictures}\nextract: {encoder: beit-micro}\n"
    assert verdict(project, text) is not None
    (project / "pictures").mkdir()
    assert verdict(project, text) is None


def test_weights_in_the_cache_or_on_the_hub(project: Path, tmp_path: Path, reached: set[str]) -> None:
    text = "extract: {encoder: wavlm-base-plus}\n"
    found = verdict(project, text)
    assert found == Obstacle(
        "encoder 'microsoft/wavlm-base-plus' is not in the local cache, and the Hugging Face hub lacks it or cannot be "
        "reached",
        "with network: hf download microsoft/wavlm-base-plus",
    )
    reached.add(f"{ONLY_HUB}/api/models/microsoft/wavlm-base-plus")
    assert verdict(project, text) is None
    reached.clear()
    cache(tmp_path, "microsoft/wavlm-base-plus", "config.json")
    assert verdict(project, text) == found
    cache(tmp_path, "microsoft/wavlm-base-plus", "pytorch_model.bin")
    assert verdict(project, text) is None
    other = verdict(project, "extract: {encoder: wavlm-base-plus, revision: v2}\n")
    assert other is not None
    assert other.fix == "with network: hf download microsoft/wavlm-base-plus --revision v2"


def test_weights_in_several_files_must_all_be_there(project: Path, tmp_path: Path) -> None:
    text = "extract: {encoder: some-one/large}\n"
    names = ("model-1-of-2.safetensors", "model-2-of-2.safetensors")
    index = {"weight_map": dict(zip("ab", names, strict=True))}
    cache(tmp_path, "some-one/large", "config.json", "model.safetensors.index.json", names[0], index=index)
    assert verdict(project, text) is not None
    cache(tmp_path, "some-one/large", names[1])
    assert verdict(project, text) is None


def test_encoders_that_need_no_hub(project: Path, tmp_path: Path) -> None:
    assert verdict(project, "extract: {encoder: wavlm-large, weights: random}\n") is None
    assert verdict(project, f"extract: {{encoder: {tmp_path}}}\n") == Obstacle(
        f"folder {tmp_path} holds no config.json, so it is not a Hugging Face model",
        f"pass the folder that holds it, or, with network, put a model there: "
        f"hf download OWNER/NAME --local-dir {tmp_path}",
    )
    gone = verdict(project, f"extract: {{encoder: {tmp_path / 'gone'}}}\n")
    assert gone is not None
    assert gone.reason == f"no folder {tmp_path / 'gone'}"
    (tmp_path / "config.json").touch()
    assert verdict(project, f"extract: {{encoder: {tmp_path}}}\n") is None
    micro = [name for name in ENCODERS if ENCODERS[name].hub_id is None]
    assert len(micro) >= 3
    assert all(verdict(project, f"extract: {{encoder: {name}}}\n") is None for name in micro)


@pytest.mark.parametrize(
    "text",
    ["extract: {poling: x}\n", "download: {corpus: emdb}\n", "train: [\n", "methods: [none, nine]\n"],
)
def test_a_pipeline_with_wrong_settings_is_not_left_out(project: Path, text: str) -> None:
    """DVC runs its stages, which say what is wrong."""
    assert verdict(project, "methods: [none]\n") is None
    assert verdict(project, text) == Obstacle("its settings are wrong", "correct pipelines/mine.yaml: daamctl check")
    written = {path.stem: json.loads(path.read_text()) for path in (project / "data/check/mine").glob("*.json")}
    assert {"download", "train-none", "report"} < written.keys()
    assert "machine" not in written
    assert all(list(part) == ["wrong"] for part in written.values())


@pytest.mark.parametrize(("told", "total"), [("24000000000\n", 24.0), ("0\n", 0.0), ("Segmentation fault\n", 0.0)])
def test_gpu_memory_is_what_torch_can_use(monkeypatch: pytest.MonkeyPatch, told: str, total: float) -> None:
    monkeypatch.setattr(inventory.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(inventory.subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], 0, told, ""))
    assert inventory.gpu_memory_gb() == total


def test_torch_is_asked_in_words_it_understands(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    class Properties:
        total_memory = 16_000_000_000

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Properties)
    exec(inventory.ASK_TORCH)
    assert capsys.readouterr().out == "32000000000\n"


def test_gpu_is_looked_for_only_where_it_is_wanted(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []

    def memory() -> float:
        asked.append(24.0)
        return 24.0

    monkeypatch.setattr(inventory, "gpu_memory_gb", memory)
    assert verdict(project, "") is None
    assert asked == []
    assert verdict(project, "extract: {min_gpu_memory_gb: 24}\n") is None
    found = verdict(project, "extract: {min_gpu_memory_gb: 28}\n")
    assert found is not None
    assert found.reason == "encoder 'wavlm-micro' needs 28 GB of GPU memory, this machine has 24 GB"


def test_no_nvidia_smi_means_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert inventory.gpu_memory_gb() == 0.0


def test_servers_are_asked_at_once_and_not_waited_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "WAIT_S", 0.2)
    monkeypatch.setattr(inventory, "answers", lambda url: url == "quick" or time.sleep(30) or True)
    start = time.monotonic()
    assert inventory._reached({"quick", "slow", "slower"}) == {"quick"}
    assert time.monotonic() - start < 15  # of 30 and more if it waited


def test_an_answer_counts_unless_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # ask for real, with requests in its place
    asked: list[str] = []
    status = {"fine": 200, "moved": 301, "unknown": 404, "refused": 403, "proxy": 407, "broken": 502}

    def head(url: str, **_: object) -> requests.Response:
        asked.append(url)
        if url not in status:
            raise requests.ConnectionError
        response = requests.Response()
        response.status_code = status[url]
        return response

    monkeypatch.setattr(requests, "head", head)
    assert {url for url in (*status, "nowhere") if inventory.answers(url)} == {"fine", "moved", "unknown"}
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    asked.clear()
    assert not inventory.answers(ONLY_HUB)
    assert asked == []
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "fine")
    assert inventory.answers(ONLY_HUB)
    assert asked == ["fine"]
    status |= {"fine/api/models/a/b": 200, "fine/api/models/a/typo": 401, "fine/api/models/a/gone": 404}
    found = [inventory.answers(f"{ONLY_HUB}/api/models/a/{name}") for name in ("b", "typo", "gone")]
    assert found == [True, False, False]


def test_inventory_imports_nothing_heavy(project: Path) -> None:
    script = (
        "import sys; from pathlib import Path\nfrom daamctl.stages import inventory\ninventory.run(Path('.'))\n"
        "print([n for n in ('torch', 'transformers', 'datasets', 'mlflow', 'sklearn', 'dvc') if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, cwd=project)
    assert done.stdout == "[]\n"


def test_what_is_lacking_by_itself(project: Path, tmp_path: Path) -> None:
    """For one set of settings, and without a word on disk."""
    before = sorted(project.rglob("*"))
    found = inventory.blockers(project, load_config(project, "iemocap"))
    assert found["corpus"] == Obstacle("corpus 'iemocap' is not on this machine", CORPORA.load("iemocap").how_to_get)
    assert found["encoder"] is not None
    assert found["encoder"].fix == "with network: hf download microsoft/wavlm-large"
    small = load_config(project, "iemocap", {"extract.encoder": "wavlm-micro", "extract.min_gpu_memory_gb": 1e6})
    assert "needs 1e+06 GB of GPU memory" in str(inventory.blockers(project, small)["encoder"])
    assert inventory.blockers(project, load_config(project, "demo")) == {"corpus": None, "encoder": None}
    assert sorted(project.rglob("*")) == before
