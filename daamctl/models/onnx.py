"""Export a model with its encoder as one ONNX graph, by torch's dynamo exporter, and compare it with torch.

The older exporter (`dynamo=False`) is never used: it traces masks wrongly without a warning.

The graph has one input: `waveform` (B, T) at the encoder's rate, `token_ids` (B, T), or `pixels` (B, 3, H, W) as the
encoder's processor makes them. All items of a batch have the same length, so that no padding needs a mask. Its outputs
are `logits` (B, C), the mean over the members, and, if the method weighs layers, `layer_weights` (B, L).
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy.special import softmax
from torch import Tensor, nn

from daamctl.encoders.base import Encoder
from daamctl.encoders.discovery import first_of, hook_layers
from daamctl.encoders.filterbank import FilterbankEncoder, ParakeetEncoder
from daamctl.encoders.image import ImageEncoder
from daamctl.encoders.spectrogram import SpectrogramEncoder
from daamctl.encoders.speech import NORMALIZE_EPS, SpeechEncoder
from daamctl.encoders.text import TextEncoder
from daamctl.encoders.whisper import HOP_SAMPLES, SAMPLES_PER_FRAME, AudioTowerEncoder, WhisperEncoder
from daamctl.errors import EncoderError, MethodError
from daamctl.methods.base import FusionClassifier
from daamctl.store.files import write_json

FILE, PARITY = "model.onnx", "parity.json"
TOLERANCE = 1e-4
"""Difference between torch and ONNX in a probability or a layer weight that is always allowed.

Where a pooled value lies in the middle between two float16 numbers, it is rounded up in one and down in the other. So
what rounding all pooled values changes is allowed, too, if it is more: up to 2e-3, of which ONNX took a tenth.
"""
INPUTS = {"speech": "waveform", "text": "token_ids", "image": "pixels"}
NEEDED = ("onnx", "onnxscript", "onnxruntime")
SHOWN = {"logits": "probabilities", "layer_weights": "layer weights"}
"""Output of the graph -> what of it is compared."""
WINDOW = 400
"""Samples of the window of Whisper's spectrum."""
SECONDS = (0.3, 0.7, 1.0)
TOKENS = (3, 12, 40)
BATCHES = (1, 3, 2)
"""Lengths and sizes of the batches that are compared; the last one is the one that is traced."""


class Graph(nn.Module):
    """From the input of an encoder to logits and layer weights.

    Args:
        encoder: freshly opened, float32, on the CPU.
        layers: layer numbers that the members read.
        storage: number format that pooled layers are rounded to, as in training.

    Raises:
        EncoderError: the encoder cannot be part of a graph.
    """

    def __init__(
        self, encoder: Encoder, members: Sequence[FusionClassifier], layers: Sequence[int], storage: str
    ) -> None:
        super().__init__()
        self.encoder, self.model, self.members = encoder, encoder.model, nn.ModuleList(members)
        self.places = [encoder.layers.index(layer) for layer in layers]
        self.storage: torch.dtype = getattr(torch, storage)
        self.weighs = all(member.weighs_layers for member in members)
        if encoder.options.layer_00 or encoder.options.pooling == "all-frames":
            raise EncoderError(f"{encoder.what}: an ONNX graph needs extract.layer_00=false and pooling=valid-frames")
        if not encoder.pooler.layers:
            raise EncoderError(f"{encoder.what}: layers that hooks cannot read cannot be part of an ONNX graph")
        if isinstance(encoder, (FilterbankEncoder, ParakeetEncoder, SpectrogramEncoder)):
            raise EncoderError(f"{encoder.what}: its mel spectrogram cannot be part of an ONNX graph")
        if isinstance(encoder, AudioTowerEncoder) and encoder.has_mask:
            raise EncoderError(f"{encoder.what}: its attention mask cannot be part of an ONNX graph")
        if isinstance(encoder, WhisperEncoder):
            # a Fourier transform as a convolution with sines and cosines, since ONNX runtimes lack complex numbers
            turns = torch.arange(WINDOW // 2 + 1)[:, None] * torch.arange(WINDOW).double() / WINDOW * 2 * torch.pi
            waves = torch.stack([turns.cos(), turns.sin()]) * torch.hann_window(WINDOW, dtype=torch.float64)
            self.register_buffer("waves", waves.flatten(0, 1).float()[:, None])  # (402, 1, 400)
            self.register_buffer("mel", torch.from_numpy(encoder.features.mel_filters.T).float())

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """Classify a batch; see the module for shapes."""
        inputs, kept = self._inputs(x)
        # rounded as stored vectors are, because the members were trained on those
        vectors = self._pooled(inputs, kept)[:, self.places].to(self.storage).float()
        members = [cast(FusionClassifier, member) for member in self.members]
        logits = torch.stack([member(vectors) for member in members]).mean(0)
        if not self.weighs:
            return (logits,)
        return logits, torch.stack([member.layer_weights(vectors) for member in members]).mean(0)

    def _inputs(self, x: Tensor) -> tuple[dict[str, Tensor], Any]:
        """Inputs of the model, and the positions that are averaged."""
        encoder = self.encoder
        if isinstance(encoder, TextEncoder):
            first, last = (0, 0) if encoder.options.pool_special_tokens else (encoder.first, encoder.last)
            end = x.shape[1] - last
            first = end - 1 if encoder.options.pooling == "last-token" else first
            if encoder.options.pooling == "first-token":
                first, end = 0, 1
            return {"input_ids": x, "attention_mask": torch.ones_like(x)}, slice(first, end)
        if isinstance(encoder, ImageEncoder):
            return {"pixel_values": x}, encoder.counted.nonzero()[:, 0]
        if isinstance(encoder, SpeechEncoder) and encoder.normalize:
            x = (x - x.mean(1, keepdim=True)) / (x.var(1, correction=0, keepdim=True) + NORMALIZE_EPS).sqrt()
        if isinstance(encoder, WhisperEncoder):
            number = (x.shape[1] + SAMPLES_PER_FRAME - 1) // SAMPLES_PER_FRAME
            return {"input_features": self._log_mel(x)}, slice(0, number)
        return {"input_values": x}, slice(None)

    def _log_mel(self, x: Tensor) -> Tensor:
        """Whisper's features (B, mels, frames) of waveforms (B, T), as its feature extractor computes them."""
        assert isinstance(self.encoder, WhisperEncoder)
        x = nn.functional.pad(x, (0, self.encoder.max_frames * SAMPLES_PER_FRAME - x.shape[1]))
        half = WINDOW // 2
        x = torch.cat([x[:, 1 : half + 1].flip(1), x, x[:, -half - 1 : -1].flip(1)], dim=1)  # reflected at both ends
        parts = nn.functional.conv1d(x[:, None], cast(Tensor, self.waves), stride=HOP_SAMPLES)[:, :, :-1]
        real, imaginary = parts.chunk(2, dim=1)
        mel = (cast(Tensor, self.mel) @ (real.square() + imaginary.square())).clamp(min=1e-10).log10()
        return (torch.maximum(mel, mel.amax((1, 2), keepdim=True) - 8.0) + 4.0) / 4.0

    def _pooled(self, inputs: dict[str, Tensor], kept: Any) -> Tensor:
        """Layers averaged over the positions that are kept, (B, L, D)."""
        found: dict[int, Tensor] = {}

        def average(number: int, out: Any) -> None:
            found[number] = first_of(out)[:, kept].float().mean(1)

        pooler = self.encoder.pooler
        handles = hook_layers(pooler.layers, average)
        if pooler.final_norm is not None:
            # it replaces the last layer, which is taken after the norm
            handles += hook_layers([pooler.final_norm], lambda _, out: average(len(pooler.layers), out))
        try:
            self.model(**inputs)
        finally:
            for handle in handles:
                handle.remove()
        return torch.stack([found[number] for number in sorted(found)], dim=1)


def check_installed() -> None:
    """Check that the optional packages are installed.

    Raises:
        MethodError: one is missing.
    """
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise MethodError(f"--onnx needs {', '.join(missing)}", fix="pip install 'daamctl[onnx]'")


def write_onnx(
    folder: Path, encoder: Encoder, members: Sequence[FusionClassifier], layers: Sequence[int], storage: str
) -> None:
    """Write the graph, and inputs and outputs of a batch in `parity.json`.

    Args:
        encoder: freshly opened, float32, on the CPU.

    Raises:
        MethodError: a package is missing, the exporter fails, or ONNX differs from torch by more than is allowed
            (`TOLERANCE`).
        EncoderError: the encoder cannot be part of a graph.
    """
    check_installed()
    graph = Graph(encoder, members, layers, storage).eval()
    batches = [_batch(encoder, size, index) for index, size in enumerate(BATCHES)]
    name = INPUTS[encoder.modality]
    outputs = ["logits", *(["layer_weights"] if graph.weighs else [])]
    with torch.no_grad(), _quiet():
        try:
            program = torch.onnx.export(
                graph,
                (batches[-1],),
                dynamo=True,
                input_names=[name],
                output_names=outputs,
                dynamic_shapes=(_dynamic(encoder),),
                verbose=False,
            )
        except Exception as error:  # the exporter fails in many ways
            reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            message = f"the model cannot be exported to ONNX: {reason[:300]}"
            raise MethodError(message, fix="export without --onnx") from error
        assert program is not None
        program.save(str(folder / FILE))
    worst, allowed, first = _compare(folder / FILE, graph, batches, outputs)
    write_json(
        folder / PARITY,
        {
            "largest_difference": {SHOWN[key]: value for key, value in worst.items()},
            "tolerance": {SHOWN[key]: value for key, value in allowed.items()},
            "shapes": [list(batch.shape) for batch in batches],
            "inputs": {name: batches[0].tolist()},
            "outputs": {key: value.tolist() for key, value in first.items()},
        },
    )


def _compare(
    path: Path, graph: Graph, batches: Sequence[Tensor], outputs: Sequence[str]
) -> tuple[dict[str, float], dict[str, float], dict[str, Any]]:
    """Run ONNX and torch on all batches: largest and allowed difference of each output, and the first outputs."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst, allowed, first = dict.fromkeys(outputs, 0.0), dict.fromkeys(outputs, TOLERANCE), dict[str, Any]()
    for batch in batches:
        expected, unrounded = _by_torch(graph, batch), _by_torch(graph, batch, torch.float32)
        found = session.run(None, {session.get_inputs()[0].name: batch.numpy()})
        for name, ours, exact, theirs in zip(outputs, expected, unrounded, found, strict=True):
            first.setdefault(name, theirs)
            if name == "logits":
                ours, exact, theirs = (softmax(one, axis=1) for one in (ours, exact, theirs))
            # np.maximum keeps NaN, which is bad, too
            worst[name] = float(np.maximum(worst[name], np.abs(ours - theirs).max()))
            allowed[name] = max(allowed[name], float(np.abs(ours - exact).max()))
    bad = [name for name in outputs if not worst[name] <= allowed[name]]
    if bad:
        shown = ", ".join(f"{SHOWN[name]} by {worst[name]:.2g}; allowed is {allowed[name]:.2g}" for name in bad)
        raise MethodError(f"ONNX differs from torch: {shown}", fix="export without --onnx")
    return worst, allowed, first


def _by_torch(graph: Graph, batch: Tensor, storage: torch.dtype | None = None) -> list[Any]:
    """What `daamctl predict` computes, by the encoder's own reading and pooling.

    Args:
        storage: number format that pooled layers are rounded to; None: that of the graph.
    """
    pooled, _ = graph.encoder.pool(list(batch))
    vectors = pooled[:, graph.places].to(storage or graph.storage).float()
    members = [cast(FusionClassifier, member) for member in graph.members]
    with torch.no_grad():
        found = [torch.stack([member(vectors) for member in members]).mean(0).numpy()]
        if graph.weighs:
            found.append(torch.stack([member.layer_weights(vectors) for member in members]).mean(0).numpy())
    return found


def _batch(encoder: Encoder, size: int, index: int) -> Tensor:
    """A seeded batch of items of one length."""
    rng = torch.Generator().manual_seed(index)
    if isinstance(encoder, TextEncoder):
        text = "the quick brown fox jumps over the lazy dog and runs away into the wide woods " * 4
        (ids,), _ = encoder.tokens([text], min(TOKENS[index] + encoder.first + encoder.last, encoder.max_tokens))
        return torch.stack([ids] * size)
    if isinstance(encoder, ImageEncoder):
        return torch.randn(size, 3, *encoder.image_size, generator=rng)
    assert isinstance(encoder, SpeechEncoder)
    return 0.1 * torch.randn(size, round(SECONDS[index] * encoder.sampling_rate), generator=rng)


def _dynamic(encoder: Encoder) -> dict[int, Any]:
    """Axes whose size is free."""
    batch = torch.export.Dim.DYNAMIC
    if isinstance(encoder, ImageEncoder):
        return {0: batch}
    if isinstance(encoder, WhisperEncoder):
        longest = encoder.max_frames * SAMPLES_PER_FRAME
        return {0: batch, 1: torch.export.Dim("samples", min=WINDOW, max=longest - 1)}
    return {0: batch, 1: torch.export.Dim.DYNAMIC}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, which reports every step and every operator that it does not need."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
