"""Settings: `schema` declares and `load` reads them; `keys` derives what they affect, `explain` what they mean."""

from daamctl.config.load import (
    PARAMS_FILE,
    PIPELINES_DIR,
    find_root,
    inspect_config,
    load_config,
    nearest_root,
    parse_overrides,
    pipeline_names,
    read_yaml,
)
from daamctl.config.schema import (
    EMBEDDINGS,
    RECIPES,
    AblateConfig,
    AdapterConfig,
    Config,
    DownloadConfig,
    ExtractConfig,
    SegmentConfig,
    TrainConfig,
    TrainingStage,
)

__all__ = [
    "EMBEDDINGS",
    "PARAMS_FILE",
    "PIPELINES_DIR",
    "RECIPES",
    "AblateConfig",
    "AdapterConfig",
    "Config",
    "DownloadConfig",
    "ExtractConfig",
    "SegmentConfig",
    "TrainConfig",
    "TrainingStage",
    "find_root",
    "inspect_config",
    "load_config",
    "nearest_root",
    "parse_overrides",
    "pipeline_names",
    "read_yaml",
]
