import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

from damcha import tap
from damcha.analysis.comparison import (
    DEFINITIONS,
    Distances,
    definite_part,
    distances,
    measured,
    nearest_semidefinite,
    principal_angles,
    transplant,
)
from damcha.analysis.geometry import head_metrics
from damcha.checkpoint.run import Example
from damcha.errors import InputError


def random(d=6, seed=0):
    return np.random.default_rng(seed).standard_normal((d, d))


class TestDistances:
    def test_by_hand(self):
        a, b = np.array([[3.0, 0], [0, 4]]), np.array([[0.0, 0], [0, 4]])
        found = distances(a, b)
        assert found.frobenius == 3
        assert found.relative == pytest.approx(3 / np.sqrt(20))
        assert found.cosine == pytest.approx(16 / 20)
        # tr P + tr Q − 2 tr (PQ)^½ = 7 + 4 − 8, P and Q commute.
        assert found.bures_wasserstein == pytest.approx(np.sqrt(3))
        assert found.not_positive == (0, 1)
        assert np.isnan(found.affine_invariant) and np.isnan(found.log_euclidean)

    def test_definite_ones_by_hand(self):
        found = distances(np.eye(2), np.diag([np.e, np.e**2]))
        assert found.affine_invariant == pytest.approx(np.sqrt(5))
        assert found.log_euclidean == pytest.approx(np.sqrt(5))

    def test_indefinite_ones(self):
        metric = np.diag([4.0, 1.0, -2.0])
        np.testing.assert_allclose(nearest_semidefinite(metric), np.diag([4.0, 1, 0]), atol=1e-12)
        assert distances(metric, np.eye(3)).kept[0] == pytest.approx(17 / 21)
        assert distances(metric, np.eye(3)).not_positive == (1, 0)
        np.testing.assert_allclose(definite_part(metric, "raise"), np.diag([4, 1, 0.04]))
        raised = distances(metric, np.eye(3), "raise")
        assert raised.affine_invariant == pytest.approx(np.hypot(np.log(4), np.log(0.04)))
        absolute = distances(metric, np.eye(3), "absolute")
        assert absolute.log_euclidean == pytest.approx(np.hypot(np.log(4), np.log(2)))
        # A sign is lost, and `absolute` says so.
        assert distances(metric, -metric, "absolute").log_euclidean == 0

    @pytest.mark.parametrize("metric", [np.zeros((2, 2)), np.array([[0.0, 1], [-1, 0]])])
    @pytest.mark.parametrize("how", ["leave_out", "raise", "absolute"])
    def test_nothing_symmetric_has_no_logarithm(self, metric, how):
        found = distances(metric, np.eye(2), how)
        assert np.isnan(found.affine_invariant) and np.isnan(found.log_euclidean)
        assert found.bures_wasserstein == pytest.approx(np.sqrt(2))

    def test_a_float32_zero_is_not_positive(self):
        low = random(6)[:, :3].astype(np.float32)
        assert distances(low @ low.T, np.eye(6)).not_positive == (3, 0)

    def test_equal_and_zero_metrics(self):
        metric = random()
        same = distances(metric, metric.copy())
        assert same.frobenius == same.relative == same.bures_wasserstein == 0
        assert same.cosine == pytest.approx(1)
        zero = distances(np.zeros((2, 2)), np.zeros((2, 2)))
        assert zero.frobenius == 0 and np.isnan(zero.cosine) and np.isnan(zero.relative)

    def test_near_ones_keep_their_digits(self):
        # The formula of traces gives 0 here: 1 − (1 − 5e-18).
        a = np.eye(3)
        assert distances(a, a * (1 + 1e-9) ** 2).bures_wasserstein == pytest.approx(
            1e-9 * np.sqrt(3), rel=1e-5
        )

    def test_every_number_is_defined(self):
        assert set(DEFINITIONS) == set(Distances.__dataclass_fields__)

    def test_refusals(self):
        with pytest.raises(InputError, match="widths 2 and 3: entry by entry"):
            distances(np.eye(2), np.eye(3))
        with pytest.raises(InputError, match="NaN or infinite values; choose another epoch"):
            distances(np.eye(2), np.full((2, 2), np.nan))
        with pytest.raises(InputError, match="'clip' is not known; choose from leave_out, raise"):
            distances(np.eye(2), np.eye(2), "clip")


class TestAngles:
    @pytest.mark.parametrize("side", ["query", "key"])
    @pytest.mark.parametrize("rank", [1, 2, 3])
    def test_they_are_scipys(self, rank, side):
        a, b = random(12), random(12, 1)
        found = principal_angles(a, b, 3, rank, side)
        for i, one in enumerate(head_metrics(a, 3)):
            for j, other in enumerate(head_metrics(b, 3)):
                bases = []
                for head in (one, other):
                    left, _, right = np.linalg.svd(head)
                    bases.append((left if side == "query" else right.T)[:, :rank])
                expected = subspace_angles(*bases)[::-1]
                np.testing.assert_allclose(found[i, j], expected, atol=1e-7)

    def test_measures(self):
        angles = np.radians([[[0.0, 60.0]]])
        assert measured(angles, "overlap")[0, 0] == pytest.approx((1 + 0.25) / 2)
        assert measured(angles, "smallest")[0, 0] == 0
        assert measured(angles, "largest")[0, 0] == pytest.approx(60)

    def test_where_no_subspace_leads(self):
        # R_0 = I: any direction is as good as another; R_1 has one that leads.
        metric = np.diag([1.0, 1.0, 5.0, 1.0])
        found = principal_angles(metric, metric, 2, 1)
        assert np.isnan(found[0]).all() and np.isnan(found[:, 0]).all()
        assert found[1, 1, 0] == 0
        assert np.isfinite(principal_angles(metric, metric, 2, 2)).all(), "the whole space"
        assert np.isnan(principal_angles(np.zeros((4, 4)), metric, 2, 2)).all()

    def test_refusals(self):
        with pytest.raises(InputError, match="rank: 5 is not between 1 and the head's width, 4"):
            principal_angles(random(8), random(8), 2, 5)
        with pytest.raises(InputError, match="widths 4 and 8"):
            principal_angles(random(4), random(8), 2, 1)


def example(inputs):
    return Example(inputs, (), (), (), "x", "x", None)


def metrics_of(model, inputs):
    with torch.no_grad(), tap(model) as capture:
        model(inputs)
    return torch.stack([record.metric[0] for record in capture.records])


def loss_with(model, inputs, metric):
    target = torch.zeros(1, dtype=torch.long)
    with torch.no_grad(), tap(model, lambda _, layer: metric[None, layer or 0]):
        return float(model.score(inputs, target)["loss"])


class TestTransplant:
    def test_the_metric_is_the_others(self, shared_model, normal):
        one, two = normal(1, 1, 12, 12), normal(1, 1, 12, 12, seed=1)
        donor = metrics_of(shared_model, two)
        found = transplant(shared_model, example(one), donor.numpy())
        own = metrics_of(shared_model, one)
        assert found.loss[0] == pytest.approx(loss_with(shared_model, one, own), abs=1e-12)
        assert found.loss[1] == pytest.approx(loss_with(shared_model, one, donor), abs=1e-12)
        assert abs(found.loss[0] - found.loss[1]) > 1e-6
        again = transplant(shared_model, example(two), donor.numpy())
        assert again.loss[0] == pytest.approx(again.loss[1], abs=1e-12)

    @pytest.mark.parametrize("settings", [{"sharing": "none"}, {"layer_bias_rank": 1}])
    def test_one_for_each_layer(self, task_model, normal, settings):
        model = task_model(**settings)
        one, two = normal(1, 1, 12, 12), normal(1, 1, 12, 12, seed=1)
        donor = metrics_of(model, two)
        found = transplant(model, example(one), donor.numpy())
        assert found.loss[1] == pytest.approx(loss_with(model, one, donor), abs=1e-12)
        every = transplant(model, example(one), donor[1:].numpy())
        expected = loss_with(model, one, donor[[1, 1]])
        assert every.loss[1] == pytest.approx(expected, abs=1e-12)

    def test_queries_meet_where_refreshes_differ(self, shared_model, normal):
        # Stride 2, 9 patches: positions begin at queries 0, 2, …, 8. A donor of stride 4 serves
        # them with its positions 0, 0, 1, 1, 2; one of stride 0, with its only one.
        one = normal(1, 1, 12, 12)
        donor = normal(1, 3, 16, 16, seed=3)
        found = transplant(shared_model, example(one), donor.numpy(), stride=4)
        expected = loss_with(shared_model, one, donor[:, [0, 0, 1, 1, 2]])
        assert found.loss[1] == pytest.approx(expected, abs=1e-12)
        found = transplant(shared_model, example(one), donor[:, :1].numpy(), stride=0)
        expected = loss_with(shared_model, one, donor[:, [0] * 5])
        assert found.loss[1] == pytest.approx(expected, abs=1e-12)

    def test_a_continuation_goes_on_with_the_last(self, task_model, normal):
        model = task_model("language_modelling")  # 10 bytes, stride 2
        text = torch.tensor([[72, 105, 33]])
        donor = normal(1, 2, 16, 16, seed=5)
        found = transplant(model, example(text), donor.numpy())
        longer = text
        for _ in range(7):
            n = -(-(longer.shape[1] + 1) // 2)  # the start token comes first
            metric = donor[:, [min(k, 1) for k in range(n)]]
            with torch.no_grad(), tap(model, lambda _, layer, m=metric: m):
                new = model.next_logits(longer).argmax(-1, keepdim=True)
            longer = torch.cat((longer, new), 1)
        said = bytes(longer[0, 3:].tolist()).decode(errors="replace")
        assert found.continuations[1] == said

    def test_what_does_not_fit(self, shared_model, task_model, normal):
        one = example(normal(1, 1, 12, 12))
        with pytest.raises(InputError, match="width 8 does not fit a model of width 16"):
            transplant(shared_model, one, np.zeros((1, 5, 8, 8)))
        with pytest.raises(InputError, match="serve 4 queries, and this one's last begins at que"):
            transplant(shared_model, one, np.zeros((1, 2, 16, 16)))
        with pytest.raises(InputError, match="has 2 metrics, one a layer, and this one uses 1"):
            transplant(shared_model, one, np.zeros((2, 5, 16, 16)))
        static = task_model(generator="static", context_stride=1)
        with pytest.raises(InputError, match="5 metrics along its sequence, and this model uses"):
            transplant(static, one, np.zeros((1, 5, 16, 16)))
        with pytest.raises(InputError, match="attention 'moa' has no cross-head metric"):
            transplant(task_model(attention="moa"), one, np.zeros((1, 5, 16, 16)))
