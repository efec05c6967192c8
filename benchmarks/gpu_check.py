"""Prove the GPU path on this machine: what it is, the tests that need it, and every figure beside its goal.

python -m benchmarks.gpu_check                      # all blocks, about half an hour on one GPU
python -m benchmarks.gpu_check extraction training  # some

Each block runs in a process of its own that is ended after nine minutes, writes `<out>/<block>.json` as it ends, and
the next one starts whatever became of it. One table of all figures stands at the end. Without a GPU the blocks run at
tiny sizes: this shows that they run, and no goal applies.

- facts: GPU, driver and libraries.
- tests: those marked `gpu`.
- timings: the decoder's convolutions, and attention by each backend; by CUDA events.
- extraction: WavLM-Large's shape, 6,000 clips; see benchmarks.extraction.
- training: steps and folds against the released loop (see benchmarks.training); a step of daam-v1, and five folds of
  IEMOCAP's size by the command `train` from its start to its end, both with and without CUDA graphs.
- finetuning: twenty LoRA steps and an evaluation of WavLM-Large's shape.
- text: eight layers of Llama2-13B's shape, with and without a padding mask.
- vision: BEiT-Large's shape, from image files.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks import extraction, large_corpus, training
from benchmarks.harness import Ways, command, in_turns, ratio
from daamctl.artifacts.layout import Layout
from daamctl.compute.devices import resolve_device
from daamctl.compute.energy import joules
from daamctl.compute.environment import prepare
from daamctl.compute.threads import allowed_cores
from daamctl.config import Config, TrainConfig, load_config
from daamctl.errors import TrainingError
from daamctl.fit.features import InMemorySplit
from daamctl.fit.steps import seed_everything
from daamctl.store.files import write_json, write_text
from daamctl.store.provenance import device_name, versions

LIMIT_S = 540.0
ROOT = Path(__file__).parents[1]
GRAPHS = ("never", "auto")
"""Values of `train.graphs`."""
WIDTH = 120
"""Columns of the table at least, also where the output goes to a file."""
TAIL = 4000
"""Characters that are kept of what a failed block printed."""


@dataclass(frozen=True)
class Row:
    """One figure.

    Args:
        figure: what it is, with its unit.
        value: the number, or words where it is none.
        goal: `>= x` or `<= x`; None: it has none.
    """

    figure: str
    value: float | str | None
    goal: str | None = None


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Args:
        device: resolved device.
        tiny: whether the blocks only have to run.
    """

    device: str
    tiny: bool

    def pick(self, full: Any, tiny: Any) -> Any:
        """One of two sizes."""
        return tiny if self.tiny else full


def main(
    blocks: Annotated[list[str] | None, typer.Argument(help="Blocks. [default: all]")] = None,
    out: Annotated[Path, typer.Option(help="Folder for <block>.json.")] = Path("data/bench/gpu"),
    tiny: Annotated[bool | None, typer.Option(help="Tiny sizes. [default: where there is no GPU]")] = None,
    limit: Annotated[float, typer.Option(min=1, help="Seconds that a block may take.")] = LIMIT_S,
    here: Annotated[bool, typer.Option("--here", hidden=True)] = False,
) -> None:
    """Run the blocks and print one table."""
    unknown = sorted(set(blocks or ()) - set(BLOCKS))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}; there are {', '.join(BLOCKS)}")
    prepare()
    gpu = torch.cuda.is_available()
    tiny = not gpu if tiny is None else tiny
    if here:
        for name in blocks or BLOCKS:
            measure(name, Sizes(resolve_device("auto"), tiny), out)
        return
    found = {}
    for name in blocks or BLOCKS:
        size = "--tiny" if tiny else "--no-tiny"
        words = [sys.executable, "-m", "benchmarks.gpu_check", name, "--here", size, "--out", str(out)]
        found[name] = run_block(name, words, out / f"{name}.json", limit)
    console = Console()
    console.width = max(console.width, WIDTH)
    console.print(table_of(found, applies=gpu and not tiny))
    if any(block["error"] for block in found.values()):
        raise SystemExit(1)


def run_block(name: str, words: Sequence[str], file: Path, limit: float) -> dict[str, Any]:
    """Run a block in a process of its own; return its JSON, which says so if it failed or was ended."""
    file.unlink(missing_ok=True)
    Console(stderr=True).rule(name)
    started = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(words, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            code: int | None = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
            os.killpg(process.pid, signal.SIGKILL)  # also what the block has started
            process.wait()
        log.seek(0)
        printed = log.read().decode(errors="replace")
    error = "" if code == 0 else f"ended after {limit:.0f} s" if code is None else f"exit code {code}"
    result: dict[str, Any] = {"block": name, "rows": []}
    if file.exists():
        result = json.loads(file.read_text(encoding="utf-8"))
    elif not error:
        error = "no figures"
    result |= {"error": error, "seconds": time.monotonic() - started, "printed": printed[-TAIL:]}
    write_json(file, result)
    if error:
        sys.stderr.write(f"{printed[-TAIL:]}\n{name}: {error}\n")
    return result


def measure(name: str, sizes: Sizes, out: Path) -> None:
    """Run a block here; its file is written anew with every figure, so that those before a failure are kept."""
    rows: list[Row] = []
    before = joules(sizes.device)

    def write() -> None:
        facts = {"block": name, "tiny": sizes.tiny, "device": device_name(sizes.device), "versions": versions()}
        write_json(out / f"{name}.json", {**facts, "rows": [asdict(row) for row in rows]})

    for row in BLOCKS[name](sizes):
        rows.append(row)
        write()
    after = joules(sizes.device)
    if before is not None and after is not None:
        rows.append(Row("energy of the block, kJ", (after - before) / 1000))
    write()


def verdict(row: Mapping[str, Any], *, applies: bool) -> str:
    """Whether a figure reaches its goal.

    Args:
        row: a `Row` as JSON.
        applies: whether goals apply: on a GPU at full size.
    """
    if row["goal"] is None:
        return ""
    if not applies:
        return "not applicable"
    if not isinstance(row["value"], int | float):
        return "fail"
    sign, bound = row["goal"].split()
    reached = row["value"] >= float(bound) if sign == ">=" else row["value"] <= float(bound)
    return "pass" if reached else "fail"


def table_of(found: Mapping[str, Mapping[str, Any]], *, applies: bool) -> Table:
    """Every figure with its goal, and every block that did not end well."""
    table = Table("block", "figure", "value", "goal", "verdict")
    for name, block in found.items():
        for row in block["rows"]:
            value = row["value"]
            text = f"{value:.4g}" if isinstance(value, int | float) else str(value)
            table.add_row(name, row["figure"], text, row["goal"] or "", verdict(row, applies=applies))
        if block["error"]:
            table.add_row(name, "the block", block["error"], "", "fail")
        elif not block["rows"]:
            table.add_row(name, "the block", "", "", "skipped")
    return table


def attempt(figure: str, work: Callable[[], float], goal: str | None = None) -> Row:
    """A figure; if this machine cannot compute it, why."""
    try:
        return Row(figure, work(), goal)
    except (RuntimeError, AssertionError, TrainingError) as error:  # no such kernel or device; no graph of this step
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return Row(figure, f"not possible: {reason[:80]}", goal)


def facts(sizes: Sizes) -> Iterator[Row]:
    """What this machine is."""
    yield Row("device", device_name(sizes.device))
    yield Row("torch", torch.__version__)
    yield Row("CUDA of torch", str(torch.version.cuda))
    yield Row("cores that may be used", len(allowed_cores()))
    if sizes.device.startswith("cuda"):
        properties = torch.cuda.get_device_properties(sizes.device)
        yield Row("memory of the GPU, GB", properties.total_memory / 1e9)
        yield Row("compute capability", f"{properties.major}.{properties.minor}")
        yield Row("cuDNN", str(torch.backends.cudnn.version()))
        yield Row("bfloat16 in hardware", str(torch.cuda.is_bf16_supported(including_emulation=False)))
        yield Row("energy counter", "yes" if joules(sizes.device) is not None else "no")


def tests(sizes: Sizes) -> Iterator[Row]:
    """The tests marked `gpu`; without a GPU all are skipped."""
    marks = ("needs_gpu", "gpu.GPU", "mark.gpu")
    files = [
        path for path in sorted((ROOT / "tests").rglob("test_*.py")) if any(mark in path.read_text() for mark in marks)
    ]
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        report = Path(folder) / "tests.xml"
        words = [sys.executable, "-m", "pytest", "-o", "addopts=", "-m", "gpu", "-v", f"--junitxml={report}"]
        words += ["-W", "default"]  # other versions of packages than the pinned ones may warn
        done = subprocess.run([*words, *map(str, files)], cwd=ROOT, check=False)
        if not report.exists():
            raise RuntimeError(f"pytest has written no report (exit code {done.returncode})")
        suite = next(ElementTree.parse(report).getroot().iter("testsuite")).attrib
    bad = int(suite["failures"]) + int(suite["errors"])
    skipped = int(suite["skipped"])
    yield Row("tests passed", int(suite["tests"]) - bad - skipped, ">= 1")
    yield Row("tests failed", bad, "<= 0")
    yield Row("tests skipped", skipped)


def milliseconds(work: Callable[[], Any], device: str, calls: int) -> float:
    """Mean time of a call; on a GPU by CUDA events."""
    if not device.startswith("cuda"):
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return 1000 * (time.perf_counter() - start) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / calls


def timings(sizes: Sizes) -> Iterator[Row]:
    """Convolutions, attention and training steps, each on its own."""
    seed_everything(1, sizes.device)  # the kernels that a fold uses
    calls = sizes.pick(50, 2)
    for precision in ("float32", "bfloat16", "float16"):
        for layout in ("contiguous", "channels-last"):
            figure = f"decoder's convolutions, {precision}, {layout}, ms"
            yield attempt(figure, partial(convolutions_ms, precision, layout, sizes, calls))
    for name in ("MATH", "EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION"):
        plain, biased = (attention(name, sizes, bias=bias) for bias in (False, True))
        for which, work, number in (("first call", plain, 1), ("later", plain, calls), ("later, bias", biased, calls)):
            yield attempt(f"{name.lower()}, {which}, ms", partial(milliseconds, work, sizes.device, number))


def convolutions_ms(precision: str, layout: str, sizes: Sizes, calls: int) -> float:
    """Forward and backward pass of the published decoder on a batch of eight."""
    layers, width = sizes.pick((24, 512), (4, 8))
    dtype, device = getattr(torch, precision), sizes.device
    order = torch.channels_last if layout == "channels-last" else torch.contiguous_format
    model = nn.Sequential(nn.Conv2d(layers, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, layers, 3, padding=1))
    model.to(device=device, dtype=dtype, memory_format=order)  # type: ignore[call-overload]
    x = torch.randn(8, layers, 32, 32, device=device, dtype=dtype).to(memory_format=order).requires_grad_()

    def work() -> None:
        model(x).sum().backward()

    work()
    return milliseconds(work, device, calls)


def attention(name: str, sizes: Sizes, *, bias: bool) -> Callable[[], Tensor]:
    """Attention of WavLM-Large's heads in bfloat16 by one backend of torch, with or without a position bias."""
    heads, frames = sizes.pick((16, 256), (2, 16))
    q, k, v = (torch.randn(16, heads, frames, 64, device=sizes.device, dtype=torch.bfloat16) for _ in range(3))
    added = torch.randn(16, heads, frames, frames, device=sizes.device, dtype=torch.bfloat16) if bias else None

    def work() -> Tensor:
        with sdpa_kernel(getattr(SDPBackend, name)):
            return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=added)

    return work


@contextmanager
def benchmark_file() -> Iterator[Path]:
    """Where a benchmark writes its JSON, for the time of a block."""
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        yield Path(folder) / "found.json"


def ratios_of(file: Path, goals: Mapping[tuple[str, str], str | None]) -> Iterator[Row]:
    """The medians of some ratios of a benchmark, by quantity and ratio."""
    for one in json.loads(file.read_text(encoding="utf-8"))["ratios"]:
        place = one["quantity"], one["ratio"]
        if place in goals:
            yield Row(f"{place[0]}: {place[1]}", one["median"], goals[place])


def extraction_block(sizes: Sizes) -> Iterator[Row]:
    """Speech, against the released procedure, the bare forward pass, and the settings proposed for a large GPU."""
    if sizes.tiny:
        extraction.NUMBER = 8
    with benchmark_file() as file:
        extraction.main(
            encoder=sizes.pick("wavlm-large", "wavlm-micro"),
            clips=sizes.pick(None, 4),
            repeats=sizes.pick(3, 1),
            corpus_folder=None,
            device=sizes.device,
            precision="auto",
            shard_clips=512,
            proposed=True,
            profile=False,
            out=file,
        )
        speed = "items_per_s"
        yield from ratios_of(file, {(speed, "ours / reference"): ">= 20", (speed, "ours / limit"): ">= 0.9"})
        found = json.loads(file.read_text(encoding="utf-8"))
    ours = found["ways"]["ours"]
    yield Row("clips/s, ours", ours[speed]["median"])
    yield Row("clips/s, first round / median", ours[speed]["runs"][0] / ours[speed]["median"])
    proposed = found["ways"]["proposed"]
    yield Row("clips/s, ours with the settings proposed for a large GPU", proposed[speed]["median"])
    if "joules_per_item" in ours:
        yield Row("joules per clip, ours", ours["joules_per_item"]["median"])
        yield Row("joules per clip, ours with the proposed settings", proposed["joules_per_item"]["median"])
        yield Row("joules per clip, released", found["ways"]["reference"]["joules_per_item"]["median"])
    for what, cosine in found["agreement"].items():
        yield Row(f"lowest cosine, {what}", cosine, ">= 0.999" if "by itself" in what else None)


def training_block(sizes: Sizes) -> Iterator[Row]:
    """Steps, folds, and five folds by the command."""
    with benchmark_file() as file:
        layers, dim, small_layers, small_dim = sizes.pick((24, 1024, 6, 384), (8, 16, 2, 16))
        number, epochs = sizes.pick((training.CLIPS["cuda"], 2), (40, 1))
        training.main(
            clips=number,
            layers=layers,
            dim=dim,
            method="daam-v1",
            batch_size=8,
            small_layers=small_layers,
            small_dim=small_dim,
            epochs=epochs,
            device=sizes.device,
            repeats=sizes.pick(2, 1),
            out=file,
        )
        goals: dict[tuple[str, str], str | None] = {
            ("fold_s", "reference fold / ours fold"): ">= 15",
            ("step_s", "reference / ours"): None,
            ("step_s", "limit / ours"): ">= 0.9",
            **{("step_s", f"{name} apart / {name} together"): None for name in training.SMALL},
        }
        yield from ratios_of(file, goals)
        ways = json.loads(file.read_text(encoding="utf-8"))["ways"]
    if "fold_j" in ways["ours fold"]:
        for way in ("ours fold", "reference fold"):
            yield Row(f"joules of a fold of two epochs, {way}", ways[way]["fold_j"]["median"])
    part, test = (training.drawn(clips, layers, dim, sizes.device) for clips in (number, -(-number // training.TESTED)))
    for graphs in GRAPHS:
        work = partial(step_ms, part, sizes.device, graphs)
        yield attempt(f"step of daam-v1, train.graphs={graphs}, ms", work)
    seconds = partial(graphed_fold_s, part, test, epochs, sizes.device)
    reference = ways["reference fold"]["fold_s"]["median"]
    yield attempt("fold_s: reference fold / ours fold, train.graphs=auto", lambda: reference / seconds(), ">= 15")
    clips, epochs = sizes.pick((7757, 35), (60, 1))
    for graphs in GRAPHS:
        work = partial(five_folds, clips, layers, dim, epochs, sizes.device, graphs)
        yield attempt(f"five folds of {epochs} epochs, {clips} clips, train.graphs={graphs}, s", work, "<= 60")


def step_ms(part: InMemorySplit, device: str, graphs: str) -> float:
    """A step of our training loop: median of three passes, after one that prepares."""
    steps = 10 * training.steps_in(part, 8)
    settings = {"batch_size": 8, "steps": steps, "selection": "last", "graphs": graphs}
    measure = training.steps_of(["daam-v1"], part, TrainConfig.model_validate(settings), device)
    measure()
    return 1000 * statistics.median(measure()["step_s"] for _ in range(3))


def graphed_fold_s(part: InMemorySplit, test: InMemorySplit, epochs: int, device: str) -> float:
    """A fold like those of benchmarks.training, with CUDA graphs: median of two, after one that prepares."""
    settings = {"batch_size": 8, "steps": None, "epochs": epochs, "selection": "best-on-test", "graphs": "auto"}
    measure = training.our_fold("daam-v1", part, test, TrainConfig.model_validate(settings), device)
    measure()
    return statistics.median(measure()["fold_s"] for _ in range(2))


def five_folds(clips: int, layers: int, dim: int, epochs: int, device: str, graphs: str) -> float:
    """Seconds of the command `train` on drawn embeddings, from its start to its end."""
    settings = {"device": device, "steps": None, "epochs": epochs, "batch_size": 8, "graphs": graphs, "search": "none"}
    recipe = json.dumps({**settings, "selection": "best-on-test"})
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        root, name = Path(folder), large_corpus.NAME
        write_text(root / "params.yaml", f"pipelines: [{name}]\n")
        write_text(root / "pipelines" / f"{name}.yaml", f"methods: [daam-v1]\ntrain: {recipe}\n")
        config = load_config(root, name)
        layout = Layout.of(root, name, config)
        large_corpus.write_embeddings(layout, config, large_corpus.clip_table(clips), layers, dim)
        words = ["train", name, "--method", "daam-v1", "--no-track"]
        return command([sys.executable, "-m", "daamctl", *words], root)["seconds"]


def finetuning(sizes: Sizes) -> Iterator[Row]:
    """LoRA steps on WavLM-Large's shape, and an evaluation."""
    import numpy as np

    from daamctl.fit.adapter import predict

    steps, batch_size = sizes.pick((20, 16), (2, 2))
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        bench = drawn_items(sizes, Path(folder), sizes.pick("wavlm-large", "wavlm-micro"), sizes.pick(535, 8))
        usual = {"batch_size": batch_size, "epochs": 1, "device": sizes.device}
        config = bench.config.model_copy(update={"finetune": bench.config.finetune.model_copy(update=usual)})
        run = extraction.lora(bench, config, lambda: bench.plain)
        read, precision = [run.opened.items.read(row) for row in range(batch_size)], run.precision

        def step() -> None:
            run.step(read, np.arange(batch_size))

        step()
        yield Row(f"LoRA step, {batch_size} clips, {precision}, ms", milliseconds(step, sizes.device, steps))
        for evaluated in dict.fromkeys(("float32", precision)):  # the default, and `finetune.eval_precision: same`
            started = time.perf_counter()
            predict(run.model, run.opened, run.split.test, precision=evaluated)  # waits for logits
            seconds = time.perf_counter() - started
            yield Row(f"evaluated clips/s, {evaluated}", len(run.split.test) / seconds)
        if sizes.device.startswith("cuda"):
            yield Row("peak memory, GB", torch.cuda.max_memory_allocated() / 1e9)


def drawn_items(sizes: Sizes, folder: Path, encoder: str, number: int) -> extraction.Bench:
    """Drawn items and an encoder of a preset's shape."""
    extraction.NUMBER = number  # not more
    settings = {"encoder": encoder, "weights": "random", "device": sizes.device}
    return extraction.prepared(Config.model_validate({"extract": settings}), number, None, folder)


def against_limit(bench: extraction.Bench, sizes: Sizes, **more: Callable[[], Mapping[str, float]]) -> Ways:
    """Our extraction and the bare forward pass, in turns, after a round that does not count."""
    ways = extraction.ways(bench)
    chosen = {"ours": ways["ours"], **more, "limit": ways["limit"]}
    for way in chosen.values():
        way()
    return in_turns(chosen, sizes.pick(3, 1), "items_per_s")


def text(sizes: Sizes) -> Iterator[Row]:
    """Llama's shape in bfloat16, eight of its forty layers, which are all alike."""
    from dataclasses import replace

    from transformers import AutoConfig, AutoModel

    from daamctl.config import ExtractConfig
    from daamctl.encoders import ENCODERS
    from daamctl.encoders.text import BYTE_TOKENS, TextEncoder

    preset = ENCODERS[sizes.pick("llama2-13b", "llama-micro")]
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        bench = drawn_items(sizes, Path(folder), "llama-micro", sizes.pick(4096, 16))
        shape = {**preset.shape, "num_hidden_layers": sizes.pick(8, 2), "vocab_size": bench.plain.vocabulary}
        with torch.device(sizes.device):
            model = AutoModel.from_config(AutoConfig.for_model(preset.model_type, **shape, **BYTE_TOKENS))
        model = model.to(torch.bfloat16).eval().requires_grad_(False)
        options = ExtractConfig(max_tokens=512)
        common: dict[str, Any] = {"device": sizes.device, "precision": "bfloat16", "options": options}
        bench = replace(bench, ours=TextEncoder("llama", model, bench.plain.reader, **common))
        ours = extraction.ways(bench)["ours"]

        def masked() -> Mapping[str, float]:
            kept, bench.ours.sends_mask = bench.ours.sends_mask, True
            try:
                return ours()
            finally:
                bench.ours.sends_mask = kept

        found = against_limit(bench, sizes, masked=masked)
        batches = extraction.our_batches(bench)
    real = sum(int(batch.n_frames.sum()) for batch in batches)
    yield Row("sends a padding mask", str(bench.ours.sends_mask))
    yield Row("texts/s, ours", found["ours"]["items_per_s"]["median"])
    yield Row("tokens / padded tokens", real / sum(batch.inputs["input_ids"].numel() for batch in batches), ">= 0.9")
    yield Row("texts/s: ours / limit", ratio(found, "items_per_s", "ours", "limit")["median"])
    yield Row("texts/s: without / with mask", ratio(found, "items_per_s", "ours", "masked")["median"])


def vision(sizes: Sizes) -> Iterator[Row]:
    """Images from files to vectors, against the bare forward pass."""
    with tempfile.TemporaryDirectory(prefix="daamctl-bench-") as folder:
        bench = drawn_items(
            sizes, Path(folder), sizes.pick("beit-large", "beit-micro"), sizes.pick(extraction.GPU_CLIPS, 8)
        )
        sent = extraction.with_settings(bench, {"image_bytes": True})
        as_bytes = extraction.ways(sent)["ours"]
        found = against_limit(bench, sizes, bytes=as_bytes)
    yield Row("images/s, as bytes / as floats", ratio(found, "items_per_s", "bytes", "ours")["median"])
    yield Row("images/s, ours", found["ours"]["items_per_s"]["median"])
    yield Row("images/s: ours / limit", ratio(found, "items_per_s", "ours", "limit")["median"], ">= 0.8")


BLOCKS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "facts": facts,
    "tests": tests,
    "timings": timings,
    "extraction": extraction_block,
    "training": training_block,
    "finetuning": finetuning,
    "text": text,
    "vision": vision,
}


if __name__ == "__main__":
    typer.run(main)
