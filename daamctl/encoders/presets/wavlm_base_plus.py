"""WavLM-Base+ (Chen et al., 2022): 12 layers x 768, English, 94,000 hours."""

from daamctl.encoders.preset import Preset

PRESET = Preset(
    hub_id="microsoft/wavlm-base-plus",
    model_type="wavlm",
    shape={"hidden_size": 768, "num_hidden_layers": 12},
    normalize=False,
    licence="cc-by-sa-3.0",
)
