from pathlib import Path

import numpy as np
import pytest
import torch

from damcha.config import DataConfig
from damcha.data.datasets import load_dataset
from damcha.data.evaluation import evaluation_set, image_tensor
from damcha.errors import InputError

SHIPPED = Path(__file__).resolve().parents[3] / "checkpoints" / "data"


def test_pictures():
    config = DataConfig()
    found = evaluation_set(config, SHIPPED / "fashion_mnist", 100)
    whole = load_dataset(config, SHIPPED / "fashion_mnist", "test")
    assert found.name == "fashion_mnist, test: 100 of 10,000"
    assert found.places[0] == 0 and found.places[-1] == 9999
    batches = list(found.batches(64))
    assert [len(inputs) for inputs, _ in batches] == [64, 36]
    assert torch.equal(batches[0][0][5:6], image_tensor(whole.images[found.places[5:6]]))
    np.testing.assert_array_equal(torch.cat([y for _, y in batches]), found.labels)
    np.testing.assert_array_equal(found.original(5), whole.images[found.places[5]])
    again, other = (evaluation_set(config, SHIPPED / "fashion_mnist", n) for n in (100, 99))
    assert found.digest == again.digest != other.digest


def test_text():
    config = DataConfig(dataset="text", seq_len=50)
    found = evaluation_set(config, SHIPPED / "text", 30)
    (inputs, targets), *_ = found.batches(30)
    assert inputs.shape == (30, 50) and targets.tolist() == [0] * 30
    assert found.original(7) == bytes(inputs[7].tolist())
    assert found.labels is None and found.class_names == ()
    assert found.parts[0] == "devils_dictionary" and found.parts[-1] == "wordnet"


def test_as_many_as_there_are():
    config = DataConfig(dataset="objects10", image_size=32, channels=3)
    assert len(evaluation_set(config, SHIPPED / "objects10", 5000)) == 1000


def test_errors():
    with pytest.raises(InputError, match="n: 0 examples cannot be evaluated; use 1 or more"):
        evaluation_set(DataConfig(), SHIPPED / "fashion_mnist", 0)
    with pytest.raises(InputError, match="no such file or folder"):
        evaluation_set(DataConfig(), SHIPPED / "nowhere")
