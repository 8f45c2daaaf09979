"""Taps: what they show, what they leave behind, and that nobody sees another's."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from damcha.attention import Cache, DAMCHAttention, row_sum
from damcha.config import MetricConfig
from damcha.errors import CaptureError
from damcha.tap import listening, tap

EXACT = {"rtol": 0, "atol": 1e-12}
STATIC = {"generator": "static", "context_stride": 1}
SHARINGS = ["stack", "parameters", "none"]


def images(batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 1, 12, 12, generator=generator, dtype=torch.float64)


def halve(metric, _):
    return metric / 2


class TestWhatIsCaptured:
    @pytest.mark.parametrize("aggregation", ["rowsum", "bilinear"])
    @pytest.mark.parametrize("sharing", SHARINGS)
    def test_tapped_equals_plain(self, task_model, sharing, aggregation):
        model = task_model(sharing=sharing, aggregation=aggregation)
        x = images(2)
        plain = model(x)
        with tap(model):
            tapped = model(x)
        # The fused RowSum adds in another order; bilinear aggregation has one path only.
        difference = (tapped - plain).abs().max()
        assert difference == 0 if aggregation == "bilinear" else difference < 1e-13
        assert torch.equal(model(x), plain)

    def test_shared_metric_is_recorded_once(self, shared_model):
        with tap(shared_model) as capture:
            shared_model(images())
        (record,) = capture.records
        # 9 patches, the metric refreshed every 2
        assert record.layer is None
        assert record.stride == 2
        assert capture.metric.shape == (5, 16, 16)
        assert capture.head_metrics.shape == (5, 2, 8, 8)
        assert capture.context.shape == (5, 16)
        torch.testing.assert_close(row_sum(capture.metric, 2), capture.head_metrics, **EXACT)

    @pytest.mark.parametrize("settings", [{"mixing": "layer"}, {"query_norm": "rms"}])
    def test_a_shared_metric_is_one_whatever_the_layers_do_to_their_queries(
        self, task_model, settings
    ):
        model = task_model(**settings)
        with torch.no_grad(), tap(model) as capture:
            model(images())
        assert [record.layer for record in capture.records] == [None]

    @pytest.mark.parametrize("sharing", ["parameters", "none"])
    def test_unshared_metrics_are_one_for_each_layer(self, task_model, sharing):
        model = task_model(sharing=sharing)
        with tap(model) as capture:
            model(images())
        assert [record.layer for record in capture.records] == [0, 1]
        assert [part.shape for part in capture.metric] == [(5, 16, 16)] * 2
        assert not torch.equal(*capture.metric)

    def test_per_layer_records_a_shared_metric_for_each_layer(self, shared_model):
        with tap(shared_model, per_layer=True) as capture:
            out = shared_model(images())
        assert [record.layer for record in capture.records] == [0, 1]
        assert torch.equal(*capture.metric)
        torch.testing.assert_close(out, shared_model(images()), **EXACT)

    def test_layer_bias_is_part_of_each_layers_metric(self, task_model):
        model = task_model(layer_bias_rank=2)
        with tap(model) as capture:
            model(images())
        source = model.stack.metric
        first, second = capture.metric
        change = source.bias_u * (source.bias_scales[1] - source.bias_scales[0]) @ source.bias_v.T
        torch.testing.assert_close(second - first, change.expand_as(first), **EXACT)

    def test_the_generator_alone_can_be_tapped(self, shared_model):
        with tap(shared_model.stack.metric) as capture:
            shared_model(images())
        assert len(capture.records) == 1

    def test_attention_scores_and_inputs_on_request(self, shared_model):
        with tap(shared_model, record=("attention", "scores", "inputs")) as capture:
            shared_model(images(3))
        assert set(capture.attention) == set(capture.scores) == set(capture.inputs) == {0, 1}
        weights = capture.attention[1]
        assert weights.shape == capture.scores[1].shape == (3, 2, 9, 9)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3, 2, 9).double(), **EXACT)
        assert (weights.triu(1) == 0).all()
        assert capture.scores[0].isfinite().all()
        assert capture.inputs[0].shape == (3, 9, 16)

    def test_only_what_was_asked_for_is_kept(self, shared_model):
        with tap(shared_model) as capture:
            shared_model(images())
        assert not capture.attention and not capture.scores and not capture.inputs

    def test_moa_reports_its_attention_and_has_no_metric(self, task_model):
        model = task_model(attention="moa")
        with tap(model, record=("attention",)) as capture:
            out = model(images())
        assert set(capture.attention) == {0, 1}
        torch.testing.assert_close(out, model(images()), **EXACT)
        with pytest.raises(CaptureError, match=r"metric: nothing was captured; .*\(MoA has none\)"):
            _ = capture.metric

    def test_tensors_stay_in_the_graph(self, task_model):
        model = task_model().requires_grad_(True)
        with tap(model) as capture:
            loss = model.loss(images(), images())
        (gradient,) = torch.autograd.grad(loss, capture.records[0].metric)
        assert gradient.abs().max() > 0

    def test_static_metric_is_the_constant(self, task_model):
        model = task_model(generator="static", context_stride=1)
        with tap(model) as capture:
            model(images(3))
        assert torch.equal(capture.metric[0].flatten(), model.stack.metric.constant)
        with pytest.raises(CaptureError, match="context: a static metric has no context"):
            _ = capture.context

    def test_several_examples_are_read_from_the_records(self, shared_model):
        with tap(shared_model) as capture:
            shared_model(images(3))
        assert capture.records[0].metric.shape == (3, 5, 16, 16)
        message = r"metric: 3 examples were captured at once; read capture.records\[i\].metric"
        with pytest.raises(CaptureError, match=message):
            _ = capture.metric

    def test_nothing_captured_is_said(self, shared_model):
        with tap(shared_model) as capture:
            pass
        with pytest.raises(CaptureError, match="head_metrics: nothing was captured; run the"):
            _ = capture.head_metrics

    def test_unknown_quantity_is_refused(self, shared_model):
        with (
            pytest.raises(CaptureError, match="record: 'keys' cannot be recorded; choose from"),
            tap(shared_model, record=("keys",)),
        ):
            pass


class TestEdits:
    def test_edit_replaces_the_metric_before_rowsum(self, shared_model):
        with tap(shared_model, edit=lambda metric, _: torch.zeros_like(metric)) as capture:
            out = shared_model(images())
        assert (capture.metric == 0).all() and (capture.head_metrics == 0).all()
        assert not torch.allclose(out, shared_model(images()))

    def test_an_edit_that_changes_nothing_changes_nothing(self, shared_model):
        with tap(shared_model, edit=lambda metric, _: metric):
            out = shared_model(images())
        torch.testing.assert_close(out, shared_model(images()), **EXACT)

    def test_the_metric_of_another_input_can_be_transplanted(self, shared_model):
        with tap(shared_model) as other:
            shared_model(images(seed=1))
        with tap(shared_model, edit=lambda *_: other.records[0].metric) as capture:
            shared_model(images())
        assert torch.equal(capture.metric, other.metric)

    def test_edits_of_one_layer(self, shared_model):
        layers = []

        def only_second(metric, layer):
            layers.append(layer)
            return metric * 0 if layer == 1 else metric

        with tap(shared_model, only_second, per_layer=True) as capture:
            shared_model(images())
        assert layers == [0, 1]
        assert capture.metric[0].abs().max() > 0
        assert capture.metric[1].abs().max() == 0

    @pytest.mark.parametrize(("sharing", "expected"), [("stack", [None]), ("none", [0, 1])])
    def test_edit_is_told_the_layer(self, task_model, sharing, expected):
        model, layers = task_model(sharing=sharing), []
        with tap(model, lambda metric, layer: layers.append(layer) or metric):
            model(images())
        assert layers == expected

    def test_a_static_metric_can_be_given_one_value_for_each_example(self, task_model):
        model = task_model(generator="static", context_stride=1)
        factors = torch.tensor([1.0, 0.0, 2.0], dtype=torch.float64).view(3, 1, 1, 1)
        x = images(1).expand(3, -1, -1, -1)
        with tap(model, lambda metric, _: metric * factors) as capture:
            out = model(x)
        assert capture.records[0].metric.shape == (3, 1, 16, 16)
        for i, factor in enumerate(factors.flatten()):
            with tap(model, lambda metric, _, factor=factor: metric * factor):
                torch.testing.assert_close(model(x[:1])[0], out[i], **EXACT)

    @pytest.mark.parametrize("settings", [STATIC, {"attention": "mha"}, {"attention": "iha"}, {}])
    def test_another_batch_than_the_inputs_is_refused(self, task_model, settings):
        model = task_model(**settings)
        with (
            pytest.raises(CaptureError, match="and a batch of 2; it must return"),
            tap(model, lambda metric, _: metric[:1].expand(3, -1, -1, -1)),
        ):
            model(images(2))

    @pytest.mark.parametrize("settings", [STATIC, {"attention": "mha"}, {"attention": "dcmha"}, {}])
    def test_an_edit_in_place_is_an_edit(self, task_model, settings):
        model = task_model(**settings)
        before = {name: weight.clone() for name, weight in model.state_dict().items()}
        plain = model(images())
        with tap(model, lambda metric, _: metric * 3):
            expected = model(images())
        with tap(model, lambda metric, _: metric.mul_(3)):
            found = model(images())
        torch.testing.assert_close(found, expected, **EXACT)
        assert not torch.equal(found, plain)
        assert torch.equal(model(images()), plain)
        assert all(torch.equal(model.state_dict()[name], old) for name, old in before.items())

    def test_real_types_are_cast(self, task_model):
        model = task_model(attention="mha")
        with tap(model, lambda metric, _: metric.round().long()) as capture:
            found = model(images())
        assert capture.records[0].metric.dtype == torch.float64
        with tap(model, lambda metric, _: metric.round()):
            torch.testing.assert_close(found, model(images()), **EXACT)

    def test_one_metric_for_all_positions_broadcasts(self, shared_model):
        identity = torch.eye(16, dtype=torch.float64)
        with tap(shared_model, lambda *_: identity) as capture:
            shared_model(images(2))
        assert torch.equal(capture.records[0].metric, identity.expand(2, 5, 16, 16))

    def test_outer_edits_come_first_and_all_taps_see_the_result(self, shared_model):
        with tap(shared_model) as plain:
            shared_model(images())
        with (
            tap(shared_model, halve) as outer,
            tap(shared_model, lambda metric, _: metric + 1) as inner,
        ):
            shared_model(images())
        torch.testing.assert_close(inner.metric, plain.metric / 2 + 1, **EXACT)
        assert torch.equal(outer.metric, inner.metric)

    def test_an_inner_tap_ends_alone(self, shared_model):
        with tap(shared_model, halve) as outer:
            with tap(shared_model, halve):
                shared_model(images())
            shared_model(images())
        quarter, half = (record.metric for record in outer.records)
        torch.testing.assert_close(quarter * 2, half, **EXACT)

    def test_a_tap_on_one_model_leaves_another_alone(self, task_model):
        one, other = task_model(seed=1), task_model(seed=2)
        plain = other(images())
        with tap(one, halve) as capture:
            out = other(images())
        assert torch.equal(out, plain)
        assert not capture.records

    @pytest.mark.parametrize(
        ("edit", "message"),
        [
            (lambda *_: None, "edit must return a tensor, not NoneType"),
            (
                lambda metric, _: metric[..., :3],
                r"edit returned shape \(1, 5, 16, 3\) for a metric of shape \(1, 5, 16, 16\)",
            ),
            (
                lambda metric, _: metric.repeat(1, 2, 1, 1),
                r"edit returned shape \(1, 10, 16, 16\) .* must return \[batch, positions, d, d\]",
            ),
            (lambda metric, _: metric[None], r"edit returned shape \(1, 1, 5, 16, 16\)"),
            (
                lambda metric, _: metric.expand(7, -1, -1, -1),
                r"edit returned shape \(7, 5, 16, 16\) .* and a batch of 1; ",
            ),
            (lambda metric, _: metric * 1j, "edit returned torch.complex128; a metric is real"),
            (lambda metric, _: metric / 0, "edit returned NaN or infinite values for a finite met"),
        ],
        ids=[
            "nothing",
            "wrong width",
            "wrong positions",
            "an axis too many",
            "another batch",
            "complex",
            "not finite",
        ],
    )
    def test_impossible_edits_are_refused_and_leave_nothing(self, shared_model, edit, message):
        plain = shared_model(images())
        with pytest.raises(CaptureError, match=message), tap(shared_model, edit):
            shared_model(images())
        assert not listening(shared_model)
        assert torch.equal(shared_model(images()), plain)


class TestNothingIsLeft:
    @staticmethod
    def state_of(model):
        hooks = [
            len(table)
            for module in model.modules()
            for name, table in vars(module).items()
            if name.endswith("_hooks")
        ]
        return [sorted(vars(module)) for module in model.modules()], hooks

    def test_after_success(self, shared_model):
        before, weights = self.state_of(shared_model), shared_model.state_dict()
        weights = {name: value.clone() for name, value in weights.items()}
        plain = shared_model(images())
        with tap(shared_model, halve, per_layer=True, record=("attention", "scores", "inputs")):
            assert listening(shared_model)
            shared_model(images())
            assert self.state_of(shared_model) == before
        assert not listening(shared_model)
        assert self.state_of(shared_model) == before
        assert torch.equal(shared_model(images()), plain)
        for name, value in shared_model.state_dict().items():
            assert torch.equal(value, weights[name])

    def test_after_an_error_in_the_edit(self, shared_model):
        plain = shared_model(images())

        def fail(metric, _):
            raise RuntimeError("mine")

        with pytest.raises(RuntimeError, match="mine"), tap(shared_model, fail):
            shared_model(images())
        assert not listening(shared_model)
        assert torch.equal(shared_model(images()), plain)

    def test_after_an_error_in_the_forward(self, shared_model):
        with pytest.raises(ValueError, match="images have shape"), tap(shared_model, halve):
            shared_model(torch.zeros(1, 3, 5, 5))
        assert not listening(shared_model)

    def test_a_caught_error_leaves_the_tap_open(self, shared_model):
        with tap(shared_model) as capture:
            with pytest.raises(ValueError, match="images have shape"):
                shared_model(torch.zeros(1, 3, 5, 5))
            shared_model(images())
        assert len(capture.records) == 1


class TestCachedDecoding:
    def step(self, layer, x, cache):
        return [
            layer(x[:, t : t + 1], x[:, t : t + 1], x[:, t : t + 1], need_weights=False,
                  is_causal=True, cache=cache)[0]
            for t in range(x.shape[1])
        ]  # fmt: skip

    @pytest.fixture
    def layer(self, randomise):
        config = MetricConfig(hidden_dims=(4,), context="causal", context_stride=3)
        return randomise(DAMCHAttention(8, 2, batch_first=True, metric=config).double())

    def test_edited_decoding_is_the_edited_forward(self, layer, normal):
        x = normal(2, 8, 8)
        with tap(layer, halve):
            full, _ = layer(x, x, x, need_weights=False, is_causal=True)
            steps = self.step(layer, x, Cache())
        torch.testing.assert_close(torch.cat(steps, 1), full, **EXACT)

    @pytest.mark.parametrize("cut", [1, 3, 4])
    @pytest.mark.parametrize("first", ["tapped", "plain"])
    def test_taps_may_open_and_close_between_steps(self, layer, normal, first, cut):
        x, cache = normal(2, 8, 8), Cache()
        full, _ = layer(x, x, x, need_weights=False, is_causal=True)
        steps = []
        for part in (x[:, :cut], x[:, cut:]):
            if (first == "tapped") == (not steps):
                with tap(layer):
                    steps += self.step(layer, part, cache)
            else:
                steps += self.step(layer, part, cache)
        torch.testing.assert_close(torch.cat(steps, 1), full, **EXACT)


class TestNobodySeesAnother:
    """One cached model, many users (cases/first.md, S1)."""

    USERS = 8
    ROUNDS = 12

    def use(self, model, user):
        """What user number `user` does: even ones edit, odd ones only look or do not even look."""
        x = images(seed=user)
        if user % 4 == 3:
            return model(x), None
        edit = (lambda metric, _: metric * user + user) if user % 2 == 0 else None
        with tap(model, edit, per_layer=user % 4 == 0, record=("attention",)) as capture:
            out = model(x)
        return out, capture

    def check(self, model, results):
        for user, (out, capture) in results:
            alone, expected = self.use(model, user)
            assert torch.equal(out, alone)
            if expected is None:
                continue
            assert len(capture.records) == len(expected.records)
            for one, two in zip(capture.records, expected.records, strict=True):
                assert torch.equal(one.metric, two.metric)
                assert torch.equal(one.context, two.context)
            assert torch.equal(capture.attention[1], expected.attention[1])

    @pytest.mark.parametrize("sharing", SHARINGS)
    def test_eight_threads_get_what_each_would_get_alone(self, task_model, sharing):
        model = task_model(sharing=sharing)
        barrier = threading.Barrier(self.USERS)

        def work(user):
            torch.set_num_threads(1)
            barrier.wait(timeout=30)
            return [(user, self.use(model, user)) for _ in range(self.ROUNDS)]

        with ThreadPoolExecutor(self.USERS) as pool:
            results = [r for part in pool.map(work, range(self.USERS)) for r in part]
        assert not listening(model)
        self.check(model, results)

    def test_a_thread_does_not_inherit_the_tap_that_is_open(self, shared_model):
        with tap(shared_model, halve) as capture, ThreadPoolExecutor(1) as pool:
            out = pool.submit(shared_model, images()).result()
        assert not capture.records
        assert torch.equal(out, shared_model(images()))

    def test_an_error_in_one_thread_harms_no_other(self, shared_model):
        def work(user):
            if user % 2:
                message = "edit must return a tensor, not NoneType"
                with pytest.raises(CaptureError, match=message), tap(shared_model, lambda *_: None):
                    shared_model(images())
            return user * 2, self.use(shared_model, user * 2)

        with ThreadPoolExecutor(4) as pool:
            self.check(shared_model, list(pool.map(work, range(4))))

    def test_interleaved_tasks_get_what_each_would_get_alone(self, shared_model):
        async def work(user):
            edit = (lambda metric, _: metric * user) if user % 2 else None
            with tap(shared_model, edit) as capture:
                await asyncio.sleep(0)
                out = shared_model(images(seed=user))
                await asyncio.sleep(0)
            return out, capture

        async def all_of_them():
            return await asyncio.gather(*map(work, range(6)))

        with ThreadPoolExecutor(1) as pool:  # Playwright may keep a loop running in this thread
            found = pool.submit(asyncio.run, all_of_them()).result()
        for user, (out, capture) in enumerate(found):
            edit = (lambda metric, _, user=user: metric * user) if user % 2 else None
            with tap(shared_model, edit) as alone:
                assert torch.equal(out, shared_model(images(seed=user)))
            assert len(capture.records) == 1
            assert torch.equal(capture.metric, alone.metric)


def test_any_module_that_contains_damcha_can_be_tapped(randomise, normal):
    class Mine(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = DAMCHAttention(8, 2, batch_first=True)
            self.b = DAMCHAttention(8, 2, batch_first=True)
            self.b.layer = 1

        def forward(self, x):
            return self.b(*[self.a(x, x, x)[0]] * 3)[0]

    mine, x = randomise(Mine().double()), normal(1, 3, 8)
    with tap(mine) as capture, tap(mine.b, halve):
        mine(x)
    assert [record.layer for record in capture.records] == [0, 1]
