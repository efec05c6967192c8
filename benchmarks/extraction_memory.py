"""How much memory one long text takes while it is embedded: our pooling against keeping all hidden states.

Repeat it (Linux, under a minute on two idle cores):

    python benchmarks/extraction_memory.py
    python benchmarks/extraction_memory.py --out data/extraction_memory.json    # --help for other sizes

A small Llama with seeded random weights and the demo's byte tokenizer reads one text of 4,096 tokens, once through
`Encoder.pool`, once with `output_hidden_states=True` and a mean over tokens at the end, which gives the same vectors.
Each figure is a process of its own: its peak resident memory during that one pass, less what it held before it, weights
loaded and kernels warmed up. What both ways share is the working memory of a single layer, which grows with the tokens;
what differs is the slope per layer: a vector of D features, or a matrix of tokens x D.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers import LlamaConfig, LlamaModel

from daamctl import __version__
from daamctl.artifacts.io import write_json
from daamctl.encoders.base import PoolingOptions
from daamctl.encoders.text import BYTE_TOKENS, TextEncoder, byte_tokenizer
from daamctl.provenance import device_name, git_commit, versions

WAYS = ("pooled", "hidden states")
VOCABULARY = 259  # the byte tokenizer's
PRELOADED = ["daamctl.encoders.text", "transformers.models.llama.modeling_llama"]
"""Imported once for all processes, so that their memory is in every baseline."""


def main(
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of the text.")] = 4096,
    layers: Annotated[list[int] | None, typer.Option(min=1, help="Layers; repeatable. [default: 2, 10]")] = None,
    width: Annotated[int, typer.Option(min=64, help="Features per layer; a multiple of 64.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare peak memory while one long text is embedded."""
    if width % 64:
        raise typer.BadParameter(f"must be a multiple of 64, met {width}", param_hint="--width")
    console = Console(stderr=True)
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"  # freed tensors go back at once, rather than to glibc's own store
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    runs: dict[tuple[int, str], list[dict[str, float]]] = {}
    for number in range(1, repeats + 1):
        for depth in layers or [2, 10]:
            for way in WAYS:
                with ProcessPoolExecutor(1, mp_context=context) as pool:
                    found = pool.submit(measure, way, tokens, depth, width).result()
                runs.setdefault((depth, way), []).append(found)
                console.print(f"{number}/{repeats} {depth} layers, {way}: {found['peak_bytes'] / 1e6:.1f} MB")
    result = {
        "sizes": {"tokens": tokens, "embed_dim": width, "layers": sorted({depth for depth, _ in runs})},
        "runs": [
            {"layers": depth, "way": way, **{name: figures([one[name] for one in found]) for name in found[0]}}
            for (depth, way), found in sorted(runs.items())
        ],
        "machine": {"device": device_name("cpu"), "cpus": os.cpu_count(), "threads": torch.get_num_threads()},
        "versions": {"daamctl": __version__, **versions()},
        "git_commit": git_commit(Path(__file__).parent),
    }
    show(result)
    if out is not None:
        write_json(out, result)


def measure(way: str, tokens: int, layers: int, width: int) -> dict[str, float]:
    """Embed one text in this process.

    Args:
        way: one of `WAYS`.
        tokens: T.
        layers: L.
        width: D.

    Returns:
        `peak_bytes` above the memory held before, and `seconds`.
    """
    encoder = small_llama(layers, width, tokens)
    text = torch.randint(3, VOCABULARY, (tokens,), generator=torch.Generator().manual_seed(0))
    embed(encoder, way, text[:16])
    gc.collect()
    before = reset_peak()
    start = time.perf_counter()
    embed(encoder, way, text)
    return {"peak_bytes": memory("VmHWM") - before, "seconds": time.perf_counter() - start}


def small_llama(layers: int, width: int, tokens: int) -> TextEncoder:
    """A Llama of random weights."""
    config = LlamaConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 64,
        intermediate_size=width * 43 // 16,  # as in Llama 2
        vocab_size=VOCABULARY,
        max_position_embeddings=tokens,
        **BYTE_TOKENS,
    )
    torch.manual_seed(0)
    return TextEncoder(
        "a small Llama",
        LlamaModel(config).eval().requires_grad_(False),
        tokenizer=byte_tokenizer(),
        device="cpu",
        precision="float32",
        max_tokens=tokens,
        options=PoolingOptions(special_tokens=True),
    )


def embed(encoder: TextEncoder, way: str, ids: torch.Tensor) -> torch.Tensor:
    """One vector per layer, (L, D), in one of the two ways."""
    if way == "pooled":
        return encoder.pool([ids])[0][0]
    with torch.inference_mode():
        states = encoder.model(input_ids=ids[None], output_hidden_states=True).hidden_states
        return torch.stack([state[0].mean(0) for state in states[1:]])


def reset_peak() -> int:
    """Forget this process's peak memory so far; give what it holds now, in bytes."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return memory("VmRSS")


def memory(field: str) -> int:
    """A figure of this process from the kernel, in bytes: VmRSS (resident now) or VmHWM (its peak)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def figures(values: list[float]) -> dict[str, Any]:
    """All values with median, lowest and highest."""
    return {"runs": values, "median": statistics.median(values), "min": min(values), "max": max(values)}


def show(result: dict[str, Any]) -> None:
    """Print the figures as a table, and what each further layer costs."""
    sizes = result["sizes"]
    title = f"one text of {sizes['tokens']} tokens, {sizes['embed_dim']} features, float32"
    table = Table("layers", "way", "runs", "median peak MB", "min - max MB", "median s", title=title)
    for one in result["runs"]:
        peak = one["peak_bytes"]
        table.add_row(
            str(one["layers"]),
            one["way"],
            str(len(peak["runs"])),
            f"{peak['median'] / 1e6:.1f}",
            f"{peak['min'] / 1e6:.1f} - {peak['max'] / 1e6:.1f}",
            f"{one['seconds']['median']:.1f}",
        )
    console = Console()
    console.print(table)
    depths = sizes["layers"]
    for way in WAYS if len(depths) > 1 else ():
        peaks = {one["layers"]: one["peak_bytes"]["median"] for one in result["runs"] if one["way"] == way}
        slope = (peaks[depths[-1]] - peaks[depths[0]]) / (depths[-1] - depths[0])
        console.print(f"{way}: {slope / 1e6:.2f} MB per further layer")


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory of one pass can only be told on Linux")
    typer.run(main)
