"""MLflow opens an exported model, and the registry takes it."""

from __future__ import annotations

import json
from pathlib import Path

import mlflow
import numpy as np
import pandas as pd
import pytest
import soundfile

from daamctl.errors import ArtifactError, CorpusError
from daamctl.fit.tracking import register_model, store_uri
from daamctl.models.model import ExportedModel
from daamctl.models.pyfunc import PyfuncModel
from tests.fixtures.exported import handmade

pytestmark = [  # of MLflow, about its own code
    pytest.mark.filterwarnings("ignore:.*noload"),
    pytest.mark.filterwarnings("ignore:.*Any type hint is inferred"),
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return handmade(tmp_path_factory.mktemp("texts") / "model", "text")


def test_mlflow_loads_the_folder(texts: Path) -> None:
    loaded = mlflow.pyfunc.load_model(str(texts))
    found = loaded.predict(pd.DataFrame({"text": ["one", "two"]}))
    expected = ExportedModel.open(texts, device="cpu").predict(["one", "two"])
    assert found["class"].tolist() == expected["class"].to_list()
    np.testing.assert_allclose(found["p_low"], expected["p_low"], atol=1e-6)
    assert "unit" not in found.columns
    with pytest.raises(mlflow.exceptions.MlflowException, match="text"):
        loaded.predict(pd.DataFrame({"path": ["one"]}))


def test_a_missing_text_is_an_error_and_not_a_word(texts: Path) -> None:
    found = PyfuncModel(ExportedModel.open(texts, device="cpu")).predict(pd.DataFrame({"text": ["one", None, np.nan]}))
    assert found["class"].isna().tolist() == [False, True, True]
    assert "it is empty" in found["error"][1]


def test_an_empty_table_is_one_line(texts: Path) -> None:
    with pytest.raises(CorpusError, match="there is no text to predict"):
        PyfuncModel(ExportedModel.open(texts, device="cpu")).predict(pd.DataFrame({"text": []}))


def test_recordings_are_given_by_path(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "a.wav", np.random.default_rng(0).normal(0, 0.1, 4000), 16000)
    model = PyfuncModel(ExportedModel.open(handmade(tmp_path / "model"), device="cpu"))
    found = model.predict([tmp_path / "absent.wav", tmp_path / "a.wav", None])
    assert found["item"].tolist() == [str(tmp_path / "absent.wav"), str(tmp_path / "a.wav"), "3"]
    assert found["class"].isna().tolist() == [True, False, True]
    assert found["error"][2] == "the table names no file"
    assert "No such file" in found["error"][0]
    assert found["class"][1] in ("high", "low")
    assert '"p_low": null' in json.dumps(found.to_dict("records"), allow_nan=False)  # as MLflow answers


@pytest.mark.slow
def test_a_registered_model_is_loaded_by_its_name(texts: Path, project: Path) -> None:
    assert [register_model(project, texts, "emotion") for _ in range(2)] == ["1", "2"]
    mlflow.set_tracking_uri(store_uri(project))
    try:
        found = mlflow.pyfunc.load_model("models:/emotion/2").predict(pd.DataFrame({"text": ["one"]}))
    finally:
        mlflow.set_tracking_uri(None)
    assert found["class"][0] in ("high", "low")
    with pytest.raises(ArtifactError, match="MLflow does not register 'a/b'"):
        register_model(project, texts, "a/b")
