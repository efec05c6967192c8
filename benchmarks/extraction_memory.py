"""How much memory one long text takes while it is embedded: our pooling against keeping all hidden states.

Repeat it (Linux, under a minute on two idle cores):

    python -m benchmarks.extraction_memory --out data/bench/extraction_memory.json    # --help for other sizes

A small Llama with seeded random weights and the demo's byte tokenizer reads one text of 4,096 tokens, once through
`Encoder.pool`, once with `output_hidden_states=True` and a mean over tokens at the end, which gives the same vectors.
Each figure is a process of its own: its peak resident memory during that one pass, less what it held before it, weights
loaded and kernels warmed up. What both ways share is the working memory of a single layer, which grows with the tokens;
what differs is the slope per layer: a vector of D features, or a matrix of tokens x D.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import torch
import typer
from transformers import LlamaConfig, LlamaModel

from benchmarks.harness import Ways, apart, conclude, figures, in_turns, ratio
from daamctl.config import ExtractConfig
from daamctl.encoders.text import BYTE_TOKENS, TextEncoder, byte_tokenizer

WAYS = ("pooled", "hidden states")
VOCABULARY = 259  # the byte tokenizer's


def main(
    tokens: Annotated[int, typer.Option(min=16, help="Tokens of the text.")] = 4096,
    layers: Annotated[list[int] | None, typer.Option(min=1, help="Layers; repeatable. [default: 2, 10]")] = None,
    width: Annotated[int, typer.Option(min=64, help="Features per layer; a multiple of 64.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each.")] = 3,
    out: Annotated[Path | None, typer.Option(help="Also write the figures to this JSON file.")] = None,
) -> None:
    """Compare peak memory while one long text is embedded."""
    if width % 64:
        raise typer.BadParameter(f"must be a multiple of 64, got {width}", param_hint="--width")
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "131072"  # freed tensors go back at once, rather than to glibc's own store
    depths = sorted(set(layers or [2, 10]))
    runs = {named(way, depth): partial(apart, measure, way, tokens, depth, width) for depth in depths for way in WAYS}
    ways = in_turns(runs, repeats, "peak_bytes")
    ratios = [ratio(ways, "peak_bytes", *(named(way, depth) for way in WAYS)) for depth in depths]
    if len(depths) > 1:
        ways |= slopes(ways, depths[0], depths[-1])
        ratios.append(ratio(ways, "bytes_per_layer", *WAYS, goal="<= 0.1"))
    sizes = {"tokens": tokens, "embed_dim": width, "layers": depths}
    conclude("extraction_memory", sizes, ways, ratios, device="cpu", out=out)


def named(way: str, layers: int) -> str:
    """A way at one depth."""
    return f"{way}, {layers} layers"


def slopes(ways: Ways, few: int, many: int) -> Ways:
    """What each further layer costs in each way, round by round, from the fewest layers to the most."""
    found: Ways = {}
    for way in WAYS:
        low, high = (ways[named(way, depth)]["peak_bytes"]["runs"] for depth in (few, many))
        pairs = zip(low, high, strict=True)
        found[way] = {"bytes_per_layer": figures([(deep - flat) / (many - few) for flat, deep in pairs])}
    return found


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
        byte_tokenizer(),
        device="cpu",
        precision="float32",
        options=ExtractConfig(max_tokens=tokens, pool_special_tokens=True),
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


if __name__ == "__main__":
    if sys.platform != "linux":
        raise SystemExit("peak memory of one pass can only be told on Linux")
    typer.run(main)
