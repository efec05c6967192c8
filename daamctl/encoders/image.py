"""Vision encoders: any Hugging Face base model with a list of equally wide layers, or that returns its hidden states.

The time axis holds patches. Positions whose input to the first layer does not depend on the image are class and
register tokens; a setting decides whether they are averaged (D47). The encoder's own processor resizes and normalises
images, in its PIL version, so that the values do not depend on which other packages are installed. A GPU gets resized
images as bytes and looks their normalised values up, which are the same bits: normalising takes longer than resizing.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float32, UInt8
from PIL import Image
from torch import Tensor

from daamctl.artifacts.utterances import Modality
from daamctl.encoders.base import Encoder
from daamctl.encoders.discovery import ModelLayers
from daamctl.encoders.presets import Preset
from daamctl.errors import EncoderError

TRIAL_SIZES = ((48, 64), (64, 48))  # different shapes: the processor must make them equal
STEPS = {
    "do_resize": ("size", "resample"),
    "do_center_crop": ("crop_size",),
    "do_pad": ("pad_size",),
    "do_rescale": ("rescale_factor",),
    "do_normalize": ("image_mean", "image_std"),
}
"""Steps of a processor, and the settings of each."""
PLAIN_STEPS = {"do_resize", "do_rescale", "do_normalize"}
AS_BYTES = {"do_rescale": False, "do_normalize": False}
"""Arguments of a processor with which it leaves the values of the pixels as they are."""


class ImageEncoder(Encoder):
    """Pools the layers of a vision model.

    Args:
        reader: its image processor, in its PIL form.

    Raises:
        EncoderError: the processor leaves images of different sizes, or the model's layers cannot be pooled (see
            `find_layers`).
    """

    modality: ClassVar[Modality] = "image"
    any_positions = True

    def set_up(self, model: Any, reader: Any) -> None:
        """Measure the images that the processor makes; see `Encoder`."""
        self.processor = reader
        self.values: Tensor | None = None  # (3, 256), what bytes are normalised to, if `pixels` gives bytes
        self.counted = torch.zeros(0, dtype=torch.bool)  # (T,), known after the trial
        if self.is_mae:
            model.config.mask_ratio = 0.0  # no patch is hidden
        noise = np.random.default_rng(0)
        trial = [self.pixels(Image.fromarray(noise.integers(0, 256, (*size, 3), np.uint8))) for size in TRIAL_SIZES]
        if trial[0].shape != trial[1].shape or trial[0].ndim != 3:
            shapes = " and ".join("x".join(map(str, pixels.shape)) for pixels in trial)
            raise EncoderError(f"the image processor of {self.what} leaves images of unequal shape: {shapes}")
        self.image_size = tuple(trial[0].shape[1:])
        self.discover(trial)
        if self.options.image_bytes and (values := self.values_of_bytes()) is not None:
            self.values = values.to(self.device)

    @property
    def is_mae(self) -> bool:
        """Whether the model shuffles patches, and hides some, in the order of a random `noise` unless it is given."""
        return bool(self.model.config.model_type == "vit_mae")

    @staticmethod
    def load_reader(source: str, **options: Any) -> Any:
        """Load the image processor in its PIL version; see `Encoder`.

        Of some, e.g. DINOv3's, transformers has only a version for torchvision. Where all that they do is to resize to
        one size and to normalise, ViT's in its PIL version does it.
        """
        from transformers import AutoImageProcessor, ViTImageProcessorPil
        from transformers.image_processing_backends import TorchvisionBackend

        try:
            found = AutoImageProcessor.from_pretrained(source, backend="pil", **options)
            if not isinstance(found, TorchvisionBackend):
                return found
        except ImportError as error:
            if "torchvision" not in str(error).lower():
                raise
            found = None
        settings, _ = ViTImageProcessorPil.get_image_processor_dict(source, **options)
        steps = {name for name, value in settings.items() if name.startswith("do_") and value} - {"do_convert_rgb"}
        if steps <= PLAIN_STEPS and {"height", "width"} == (settings.get("size") or {}).keys():
            used = [*PLAIN_STEPS, *(setting for step in PLAIN_STEPS for setting in STEPS[step])]
            return ViTImageProcessorPil(**{name: settings[name] for name in used if name in settings})
        if found is None:
            raise EncoderError(
                f"the image processor of encoder '{source}' needs torchvision, which is not installed",
                fix="install the version that goes with your torch: pip install torchvision",
            )
        return found

    @staticmethod
    def random_reader(preset: Preset, config: Any) -> Any:
        """Make a processor for the model's image size; see `Encoder`."""
        return plain_processor(config.image_size)

    def set_token_mask(self, found: ModelLayers) -> None:
        """Distinguish patches from class and register tokens, whose input is the same for two different images."""
        only = self.options.pool_class_token == "only"
        no_token = EncoderError(f"{self.what} has no class token", fix="set extract.pool_class_token to false")
        if not found.layers:  # their numbers of positions may differ
            if only:
                raise no_token
            self.num_class_tokens, self.counted = 0, torch.ones(found.normed.shape[1], dtype=torch.bool)
            return
        one, other = found.states[0]  # (T, D) each
        patches = (one != other).any(1).cpu()
        if not bool(patches.any()):
            raise EncoderError(f"no position of {self.what} depends on the image")
        self.num_class_tokens = int((~patches).sum())
        self.counted = torch.ones_like(patches) if self.options.pool_class_token else patches
        if only:  # register tokens follow
            if not self.num_class_tokens:
                raise no_token
            self.counted = torch.arange(len(patches)) == int((~patches).int().argmax())

    def pixels(self, image: Image.Image) -> Tensor:
        """Resize one RGB image: (3, H, W), float32 and normalised, or bytes to look up in `values`."""
        if self.values is not None:
            return self._processed(image, **AS_BYTES)
        return self._processed(image).float()

    def _processed(self, image: Image.Image, **options: bool) -> Tensor:
        pixels: Tensor = self.processor(image, return_tensors="pt", **options)["pixel_values"][0]
        return pixels

    def values_of_bytes(self) -> Tensor | None:
        """What the processor normalises each byte to in each channel: (3, 256) float32.

        None if looking values up does not give exactly what the processor gives.
        """
        ramp = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8)[None, :, None], (1, 1, 3)))
        try:
            values = self._processed(ramp, do_resize=False, do_center_crop=False, do_pad=False).float()[:, 0]
        except Exception:  # a processor may refuse arguments in any way
            return None
        noise = np.random.default_rng(1)
        for size in TRIAL_SIZES:
            image = Image.fromarray(noise.integers(0, 256, (*size, 3), np.uint8))
            pixels, expected = self._processed(image, **AS_BYTES), self._processed(image).float()
            if pixels.dtype != torch.uint8 or values.shape != (3, 256):
                return None
            if not torch.equal(looked_up(values, pixels[None])[0], expected):
                return None
        return values

    def positions(self, size: int) -> int:
        """Number of positions, the same for every image; see `Encoder`."""
        return len(self.counted)

    def collate_cpu(self, items: Sequence[Tensor]) -> tuple[dict[str, Tensor], Tensor]:
        """Batch pixels (3, H, W); see `Encoder`. Bytes remain bytes until they are on the device."""
        pixels = torch.stack(list(items))
        if pixels.dtype != torch.uint8:
            pixels = pixels.to(self.model.dtype)
        inputs = {"pixel_values": pixels}
        if self.is_mae:
            side = self.model.config.patch_size
            number = (pixels.shape[2] // side) * (pixels.shape[3] // side)
            inputs["noise"] = torch.linspace(0, 1, number).repeat(len(pixels), 1)
        return inputs, self.counted.repeat(len(items), 1)

    def send(self, inputs: dict[str, Tensor], mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """See `Encoder.send`; pixel values of 0 to 255 are normalised here, on the device."""
        inputs, mask = super().send(inputs, mask)
        pixels = inputs["pixel_values"]
        if pixels.dtype == torch.uint8:
            assert self.values is not None
            inputs |= {"pixel_values": looked_up(self.values, pixels).to(self.model.dtype)}
        return inputs, mask

    def facts(self) -> dict[str, Any]:
        """Processor, image size and class tokens; see `Encoder`."""
        return {
            "processor": processor_facts(self.processor),
            "image_size": list(self.image_size),
            "class_tokens": {"number": self.num_class_tokens, "pooled": self.options.pool_class_token},
        }


def looked_up(values: Float32[Tensor, "3 256"], pixels: UInt8[Tensor, "B 3 H W"]) -> Float32[Tensor, "B 3 H W"]:
    """The value of each byte of a batch of images in its channel."""
    return torch.stack([values[channel][pixels[:, channel].int()] for channel in range(3)], dim=1)


def processor_facts(processor: Any) -> dict[str, Any]:
    """Steps of an image processor with their settings, as JSON-able values."""
    settings = processor.to_dict()
    facts = {"type": settings.get("image_processor_type", type(processor).__name__)}
    for name, value in settings.items():
        if name.startswith("do_") and value:
            facts |= {name: True, **{one: settings.get(one) for one in STEPS.get(name, ())}}
    # what only this processor has, e.g. crop_pct of ConvNeXt's; files may hold further settings, which it ignores
    usual = {setting for step in STEPS.values() for setting in step}
    own = {name for name in settings if hasattr(type(processor), name) and not name.startswith("do_")} - usual
    facts |= {name: settings[name] for name in sorted(own)}
    facts |= settings.get("data_config", {})  # of timm's
    if "resample" in facts:
        facts["resample"] = Image.Resampling(facts["resample"]).name.lower()
    values: dict[str, Any] = json.loads(json.dumps(facts, default=dict))
    return values


def plain_processor(image_size: Any) -> Any:
    """Processor for random weights: bilinear resize to the model's size, scale to [0, 1], then mean 0.5 and std 0.5."""
    from transformers import ViTImageProcessorPil

    height, width = (image_size, image_size) if isinstance(image_size, int) else image_size
    return ViTImageProcessorPil(size={"height": height, "width": width})
