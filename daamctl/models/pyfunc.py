"""MLflow's way into an exported model: the loader module that its file `MLmodel` names. Nothing is pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import yaml

from daamctl.errors import ConfigError
from daamctl.models.folder import ModelRecord
from daamctl.models.inputs import files_as_rows, texts_as_rows
from daamctl.models.model import ExportedModel
from daamctl.models.predict import predict_all

FILE = "MLmodel"


def mlmodel_of(record: ModelRecord) -> str:
    """The content of `MLmodel`."""
    column = "text" if record.modality == "text" else "path"
    flavor = {
        "loader_module": "daamctl.models.pyfunc",
        "python_version": record.versions.get("python", ""),
    }
    signature = {"inputs": f'[{{"type": "string", "name": "{column}", "required": true}}]'}
    content = {"flavors": {"python_function": flavor}, "signature": {**signature, "outputs": None, "params": None}}
    return yaml.safe_dump(content, sort_keys=False)


class PyfuncModel:
    """What `mlflow.pyfunc.load_model` wraps."""

    def __init__(self, model: ExportedModel) -> None:
        self.model = model

    def predict(self, model_input: pd.DataFrame, params: dict[str, Any] | None = None) -> pd.DataFrame:
        """Predict items.

        Args:
            model_input: a table with a column `path` or `text`, or a list of paths or texts. A path is one file. A
                missing one is a row with an error, as an empty one is.
            params: unused.

        Returns:
            One row per item, in the same order: class, probabilities and the other columns of `daamctl predict`. A
            file that cannot be read has an error.

        Raises:
            ConfigError: the column is missing.
        """
        column = "text" if self.model.record.modality == "text" else "path"
        if isinstance(model_input, pd.DataFrame):
            if column not in model_input.columns:
                raise ConfigError(
                    f"the model needs a column '{column}', got {', '.join(map(str, model_input.columns))}"
                )
            model_input = model_input[column]
        values = ["" if pd.isna(value) else str(value) for value in model_input]
        rows = texts_as_rows(values) if column == "text" else files_as_rows(map(Path, values))
        given, number = pl.Series(values, dtype=pl.String) != "", pl.int_range(1, pl.len() + 1).cast(pl.String)
        # Path("") is the current folder; as in a table, the row without a file is named by its number
        rows = rows.with_columns(path=pl.when(given).then("path"), item=pl.when(given).then("item").otherwise(number))
        found = predict_all(self.model, rows)
        items = found.filter(found["unit"] == "item").drop(
            "unit", "label", "clip", "start_s", "duration_s", strict=False
        )
        # missing values stay None: pandas would make NaN of them, which JSON does not have
        columns = items.to_dict(as_series=False).items()
        return pd.DataFrame({name: pd.Series(part, dtype=object if None in part else None) for name, part in columns})


def _load_pyfunc(path: str) -> PyfuncModel:
    """Open the folder; MLflow calls this by its name."""
    return PyfuncModel(ExportedModel.open(Path(path)))
