import numpy as np
import pytest
import torch

from damcha import inspect, open_run
from damcha.analysis.inspection import Inspection, TextAnswer, attention_maps
from damcha.errors import InputError


def look(folder, source=None, epoch=None):
    run = open_run(folder)
    example = run.prepare(run.samples[0] if source is None else source)
    model = run.load(epoch, "cpu")
    return model, example, inspect(model, example)


class TestImages:
    def test_a_position_for_every_refresh(self, tiny_runs):
        _, _, found = look(tiny_runs / "fashion-damcha")
        assert found.tokens == ("start", *(f"r{k // 3} c{k % 3}" for k in range(8)))
        assert found.metrics.shape == (1, 5, 16, 16)
        assert found.position_labels == (
            "start to r0 c0", "r0 c1 to r0 c2", "r1 c0 to r1 c1", "r1 c2 to r2 c0", "r2 c1",
        )  # fmt: skip

    def test_the_error_is_that_of_the_prediction(self, tiny_runs):
        model, example, found = look(tiny_runs / "fashion-damcha")
        assert found.answer.mse == pytest.approx(model.loss(example.inputs, None).item(), rel=1e-5)
        assert found.answer.error.shape == (3, 3)
        np.testing.assert_array_equal(found.answer.completed[:8], example.seen[:8])
        assert found.answer.predicted.shape == example.seen.shape

    def test_tapped_is_plain(self, tiny_runs):
        assert look(tiny_runs / "fashion-damcha")[2].tapped_difference < 1e-5

    def test_one_metric_a_layer(self, tiny_runs):
        assert look(tiny_runs / "unshared")[2].metrics.shape[0] == 2

    def test_no_metric(self, tiny_runs):
        _, _, found = look(tiny_runs / "moa")
        assert found.metrics is None
        assert found.position_labels == ("all tokens",)
        assert found.tapped_difference == 0

    def test_classes(self, tiny_runs):
        model, example, found = look(tiny_runs / "classes")
        assert found.answer.class_names == ("bag", "<b>boot</b>", "coat")
        wanted = model(example.inputs).softmax(-1)[0]
        np.testing.assert_allclose(found.answer.probabilities, wanted, rtol=1e-5)
        assert found.position_labels == ("all tokens",)
        assert found.tokens == example.labels

    def test_arrays_are_read_only(self, tiny_runs):
        _, _, found = look(tiny_runs / "fashion-damcha")
        for array in (found.metrics, found.answer.error, found.answer.predicted):
            with pytest.raises(ValueError, match="read-only"):
                array[0] = 0


class TestText:
    def test_nats_are_the_models(self, tiny_runs):
        model, example, found = look(tiny_runs / "text", "abc")
        log_p = model(example.inputs).double().log_softmax(-1)[0]
        wanted = [-log_p[k, byte] for k, byte in enumerate(b"abc")]
        np.testing.assert_allclose(found.answer.nats, wanted, rtol=1e-5)
        assert found.answer.bits == pytest.approx(np.mean(wanted) / np.log(2))
        assert found.tokens == ("start", "a", "b")

    def test_the_next_byte_is_what_a_longer_text_is_measured_by(self, tiny_runs):
        _, _, short = look(tiny_runs / "text", "abc")
        _, _, longer = look(tiny_runs / "text", "abcd")
        assert longer.answer.nats[-1] == pytest.approx(
            -np.log(short.answer.next_symbol[ord("d")]), rel=1e-4
        )

    def test_a_text_that_fills_the_model(self, tiny_runs):
        _, _, found = look(tiny_runs / "text", "0123456789")
        assert isinstance(found.answer, TextAnswer)
        assert found.answer.continuation == ""
        assert found.answer.nats[-1] == pytest.approx(-np.log(found.answer.next_symbol[ord("9")]))


class TestAttentionMaps:
    def test_rows_are_causal_distributions(self, tiny_runs):
        model, example, _ = look(tiny_runs / "fashion-damcha")
        maps = attention_maps(model, example, 1)
        assert maps.shape == (2, 9, 9)
        np.testing.assert_allclose(maps.sum(-1), 1, rtol=1e-5)
        assert (np.triu(maps, 1) == 0).all()

    def test_no_such_layer(self, tiny_runs):
        model, example, _ = look(tiny_runs / "mha")
        with pytest.raises(InputError, match="there is no layer 2; this model has 0 to 1"):
            attention_maps(model, example, 2)


def test_labels_of_positions_that_serve_one_query():
    metrics = np.zeros((1, 3, 2, 2), np.float32)
    answer = TextAnswer(np.zeros(3), np.zeros(256), "")
    found = Inspection(metrics, 1, ("start", "a", "b"), answer, 0.0)
    assert found.position_labels == ("start", "a", "b")


def test_an_example_of_another_model(tiny_runs):
    model = open_run(tiny_runs / "text").load(None, "cpu")
    run = open_run(tiny_runs / "mha")
    with pytest.raises(InputError, match=r"byte|text|int64"):
        inspect(model, run.prepare(run.samples[0]))
    assert torch.is_grad_enabled()
