import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis.comparison import distances, positive_part, subspace_overlap, transplant
from damcha.checkpoint.run import Example
from damcha.errors import InputError


def spd(seed, d=6):
    a = np.random.default_rng(seed).standard_normal((d, d))
    return a @ a.T + np.eye(d)


def invertible(seed, d=6):
    return np.random.default_rng(seed).standard_normal((d, d)) + 3 * np.eye(d)


NAMES = ("affine_invariant", "log_euclidean", "bures_wasserstein")


@pytest.mark.parametrize("seed", range(4))
def test_they_are_pyriemanns_on_positive_matrices(seed):
    from pyriemann.geometry import distance

    a, b = spd(seed), spd(seed + 10)
    found = distances(a, b)
    assert found.affine_invariant == pytest.approx(float(distance.distance_riemann(a, b)))
    assert found.log_euclidean == pytest.approx(float(distance.distance_logeuclid(a, b)))
    assert found.bures_wasserstein == pytest.approx(float(distance.distance_wasserstein(a, b)))
    assert found.kept == pytest.approx((1, 1))
    assert found.frobenius == pytest.approx(np.linalg.norm(a - b))


@pytest.mark.parametrize("seed", range(6))
def test_metric_axioms(seed):
    a, b, c = (spd(seed + k) for k in (0, 20, 40))
    for name in (*NAMES, "frobenius"):
        ab, ba, ac, cb = (getattr(distances(*pair), name)
                          for pair in ((a, b), (b, a), (a, c), (c, b)))  # fmt: skip
        assert ab == pytest.approx(ba) and ab > 0
        assert ab <= ac + cb + 1e-9
        assert getattr(distances(a, a), name) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_invariances(seed):
    a, b, w = spd(seed), spd(seed + 10), invertible(seed)
    q, _ = np.linalg.qr(w)
    before, turned = distances(a, b), distances(q @ a @ q.T, q @ b @ q.T)
    for name in (*NAMES, "frobenius", "cosine"):
        assert getattr(turned, name) == pytest.approx(getattr(before, name)), name
    # Any change of basis (Pennec, Fillard & Ayache 2006, §3); no floor may be met on the way.
    moved = distances(w @ a @ w.T, w @ b @ w.T)
    assert moved.affine_invariant == pytest.approx(before.affine_invariant)
    # Inversion (Arsigny et al. 2006, §3).
    inverse = distances(np.linalg.inv(a), np.linalg.inv(b))
    assert inverse.log_euclidean == pytest.approx(before.log_euclidean)


def test_indefinite_metrics_keep_their_positive_part():
    metric = np.diag([4.0, 1.0, -2.0])
    np.testing.assert_allclose(positive_part(metric), np.diag([4, 1, 0.004]), atol=1e-12)
    found = distances(metric, np.eye(3))
    assert found.kept[0] == pytest.approx((16 + 1 + 0.004**2) / 21)
    skew = np.array([[0.0, 1.0], [-1.0, 0.0]])
    assert np.isnan(distances(skew, np.eye(2)).affine_invariant)
    assert not positive_part(-np.eye(2)).any()


def test_equal_and_zero_metrics():
    metric = invertible(0)
    same = distances(metric, metric)
    assert same.frobenius == 0 and same.relative == 0 and same.cosine == pytest.approx(1)
    zero = distances(np.zeros((2, 2)), np.zeros((2, 2)))
    assert zero.frobenius == 0 and np.isnan(zero.cosine)


def test_subspaces():
    rng = np.random.default_rng(0)
    a = rng.standard_normal((8, 8))
    same = subspace_overlap(a, a, 2, 2)
    np.testing.assert_allclose(np.diag(same), 1)
    assert (same <= 1 + 1e-12).all() and same[0, 1] < 1
    np.testing.assert_allclose(subspace_overlap(a, a.T, 2, 4), 1)
    rows = a.reshape(2, 4, 2, 4).sum(2)
    u, v = np.linalg.svd(rows[0])[0][:, :2], np.linalg.svd(rows[1])[0][:, :2]
    angles = np.linalg.svd(u.T @ v, compute_uv=False)
    assert same[0, 1] == pytest.approx((angles**2).mean())
    with pytest.raises(InputError, match="rank: 5 is not between 1 and the head's width 4"):
        subspace_overlap(a, a, 2, 5)


def test_what_cannot_be_compared():
    with pytest.raises(InputError, match="widths 2 and 3"):
        distances(np.eye(2), np.eye(3))
    with pytest.raises(InputError, match="NaN or infinite"):
        distances(np.eye(2), np.full((2, 2), np.nan))


def example(inputs):
    return Example(inputs, (), (), (), "x", "x", None)  # type: ignore[arg-type]


def test_a_transplanted_metric_is_the_others(shared_model, normal):
    one, two = normal(1, 1, 12, 12), normal(1, 1, 12, 12, seed=1)
    with torch.no_grad(), tap(shared_model) as capture:
        shared_model(two)
    donor = capture.records[0].metric
    found = transplant(shared_model, example(one), donor.numpy())
    label = torch.zeros(1, dtype=torch.long)
    with torch.no_grad():
        own = shared_model.score(one, label)["loss"]
        with tap(shared_model, lambda metric, layer: donor):
            swapped = shared_model.score(one, label)["loss"]
    assert found.loss == pytest.approx([float(own), float(swapped)])
    again = transplant(shared_model, example(two), donor.numpy())
    assert again.loss[0] == pytest.approx(again.loss[1], abs=1e-12)


def test_transplants_that_do_not_fit(shared_model, normal):
    one = normal(1, 1, 12, 12)
    with pytest.raises(InputError, match="width 8 does not fit a model of width 16"):
        transplant(shared_model, example(one), np.zeros((1, 5, 8, 8)))
    with pytest.raises(InputError, match="refreshes its metric 2 times, this one 5 times"):
        transplant(shared_model, example(one), np.zeros((1, 2, 16, 16)))
    found = transplant(shared_model, example(one), np.zeros((1, 1, 16, 16)))
    assert len(found.loss) == 2, "one metric for the whole input serves every position"
