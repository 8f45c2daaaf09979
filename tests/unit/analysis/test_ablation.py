import numpy as np
import pytest
import torch

from damcha import tap
from damcha.analysis.ablation import (
    INTERVENTIONS,
    Evaluation,
    ablate,
    edit_of,
    evaluate,
    knock_out,
    knock_out_heads,
    norm_matched,
    of_rank,
    over_ranks,
    over_snapshots,
    part_of,
    scaled_blocks,
    summarise,
)
from damcha.analysis.progress import Progress, finished
from damcha.attention.metric import row_sum
from damcha.checkpoint.run import Example
from damcha.data.datasets import ImageData
from damcha.data.evaluation import EvaluationSet
from damcha.errors import InputError

H = 2


def example(inputs, labels=()):
    return Example(inputs, tuple(labels), (), (), "x", "x", None)  # type: ignore[arg-type]


@pytest.fixture
def image(normal):
    return normal(1, 1, 12, 12)


def reference(model, inputs, change):
    """The loss with M changed example by example, in plain NumPy."""

    def edit(metric, layer):
        rows = [[change(m.numpy()) for m in row] for row in metric]
        return torch.from_numpy(np.array(rows))

    with torch.no_grad(), tap(model, edit):
        return float(model.score(inputs, torch.zeros(1, dtype=torch.long))["loss"])


def loop_part(metric, diagonal):
    out, e = np.zeros_like(metric), len(metric) // H
    for a in range(H):
        for b in range(H):
            if (a == b) == diagonal:
                block = slice(a * e, (a + 1) * e), slice(b * e, (b + 1) * e)
                out[block] = metric[block]
    return out


def loop_matched(metric, diagonal):
    kept, e = loop_part(metric, diagonal), len(metric) // H
    for a in range(H):
        rows = slice(a * e, (a + 1) * e)
        r = sum(metric[rows, b * e : (b + 1) * e] for b in range(H))
        q = sum(kept[rows, b * e : (b + 1) * e] for b in range(H))
        kept[rows] *= np.linalg.norm(r) / np.linalg.norm(q)
    return kept


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("full", lambda m: m),
        ("diagonal", lambda m: loop_part(m, True)),
        ("off_diagonal", lambda m: loop_part(m, False)),
        ("diagonal_matched", lambda m: loop_matched(m, True)),
        ("off_diagonal_matched", lambda m: loop_matched(m, False)),
        ("identity", lambda m: np.eye(len(m))),
        ("zero", np.zeros_like),
    ],
)
def test_interventions_are_what_they_say(shared_model, image, name, change):
    found = ablate(shared_model, example(image), {"it": edit_of(name, shared_model)})
    assert found.loss[0] == pytest.approx(reference(shared_model, image, change), abs=1e-10)


def test_the_mean_and_the_random_control(shared_model, image):
    with torch.no_grad(), tap(shared_model) as capture:
        shared_model(image)
    metric = capture.records[0].metric
    mean = np.full((1, *metric.shape[1:]), 0.25)
    fixed = edit_of("mean", shared_model, mean)(metric, None)
    np.testing.assert_array_equal(fixed, np.broadcast_to(mean, metric.shape))
    random = edit_of("random", shared_model)(metric, None)
    torch.testing.assert_close(random.norm(dim=(-1, -2)), metric.norm(dim=(-1, -2)))
    assert torch.equal(random, edit_of("random", shared_model)(metric, None))
    with pytest.raises(InputError, match="no data-set mean"):
        edit_of("mean", shared_model)
    with pytest.raises(InputError, match="intervention: 'magic' is not known; choose from full"):
        edit_of("magic", shared_model)


def test_one_batch_serves_all_interventions(task_model, image):
    for settings in ({}, {"aggregation": "bilinear"}, {"sharing": "none"},
                     {"generator": "static", "context_stride": 1}):  # fmt: skip
        model = task_model(**settings)
        edits = {name: edit_of(name, model) for name in INTERVENTIONS if name != "mean"}
        together = ablate(model, example(image), edits)
        for name, loss in zip(together.names, together.loss, strict=True):
            alone = ablate(model, example(image), {name: edits[name]})
            assert loss == pytest.approx(alone.loss[0], abs=1e-12)
        assert together.pictures.shape == (len(edits), 12, 12, 1)


def test_text_and_classes(task_model):
    text = torch.tensor([[84, 104, 101]])
    model = task_model("language_modelling")
    found = ablate(model, example(text), {n: edit_of(n, model) for n in ("full", "zero")})
    assert found.nats.shape == (2, 3) and len(found.continuations) == 2
    assert found.nats.mean(1) == pytest.approx(found.loss)
    model = task_model("image_classification", causal=False, context="full", context_stride=1)
    picture = torch.zeros(1, 1, 12, 12, dtype=torch.float64)
    found = ablate(model, example(picture), {"full": edit_of("full", model)})
    assert found.loss[0] == pytest.approx(-np.log(found.probabilities.max()))


@pytest.mark.parametrize("bilinear", [False, True])
def test_norms_match(normal, bilinear):
    metric = normal(3, 8, 8)
    matched = norm_matched(part_of(metric, H, True), metric, H, bilinear)
    if bilinear:
        now, then = (m.unflatten(-2, (H, -1)).flatten(-2).norm(dim=-1) for m in (matched, metric))
    else:
        now, then = (row_sum(m, H).flatten(-2).norm(dim=-1) for m in (matched, metric))
    torch.testing.assert_close(now, then, rtol=0, atol=1e-12)
    assert not norm_matched(torch.zeros(8, 8), torch.ones(8, 8), H, bilinear).any()


def test_diagonal_and_off_diagonal_add_up(normal):
    metric = normal(2, 3, 8, 8)
    total = part_of(metric, H, True) + part_of(metric, H, False)
    assert torch.equal(total, metric)


def test_blocks_removed_one_by_one(task_model, image):
    model = task_model(aggregation="bilinear")
    effects, heads = knock_out(model, example(image)), knock_out_heads(model, example(image))
    full = reference(model, image, lambda m: m)
    for a in range(H):
        for b in range(H):

            def without(m, a=a, b=b):
                m = m.copy()
                m[a * 8 : (a + 1) * 8, b * 8 : (b + 1) * 8] = 0
                return m

            assert effects[a, b] == pytest.approx(
                reference(model, image, without) - full, abs=1e-10
            )

        def column(m, a=a):
            m = m.copy()
            m[:, a * 8 : (a + 1) * 8] = 0
            return m

        assert heads[1, a] == pytest.approx(reference(model, image, column) - full, abs=1e-10)


def test_a_small_memory_only_splits_the_batch(shared_model, image, monkeypatch):
    whole = knock_out(shared_model, example(image))
    monkeypatch.setattr("damcha.analysis.ablation.MOST_NUMBERS", 2 * 5 * 256)
    np.testing.assert_allclose(knock_out(shared_model, example(image)), whole, atol=1e-12)


@pytest.mark.parametrize("bilinear", [False, True])
def test_rank(normal, task_model, image, bilinear):
    metric = normal(2, 16, 16)
    cut = of_rank(metric, H, 3, bilinear)
    rows = cut.unflatten(-2, (H, -1)) if bilinear else row_sum(cut, H)
    assert (torch.linalg.matrix_rank(rows) == 3).all()
    whole = of_rank(metric, H, 8, bilinear)
    if bilinear:
        torch.testing.assert_close(whole, metric)
    torch.testing.assert_close(row_sum(whole, H), row_sum(metric, H))
    model = task_model(aggregation="bilinear" if bilinear else "rowsum")
    ranks, losses = over_ranks(model, example(image))
    assert ranks.tolist() == list(range(9))
    assert losses[-1] == pytest.approx(reference(model, image, lambda m: m), abs=1e-10)
    assert losses[0] == pytest.approx(reference(model, image, np.zeros_like), abs=1e-10)


def test_an_edit_by_hand(shared_model, image):
    factors = np.array([[2.0, 1.0], [0.0, -1.0]])
    found = ablate(shared_model, example(image), {"by hand": scaled_blocks(factors)})
    wanted = reference(shared_model, image, lambda m: m * np.kron(factors, np.ones((8, 8))))
    assert found.loss[0] == pytest.approx(wanted, abs=1e-10)


def held_out(n=70):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (n, 12, 12, 1), np.uint8)
    data = ImageData(images, np.zeros(n, np.int64), ("a",), "", "")
    return EvaluationSet("noise", data, np.arange(n), 9, "digest")


def test_many_inputs(task_model):
    model, data = task_model().float(), held_out()
    edits = {name: edit_of(name, model) for name in ("full", "zero")}
    steps = list(evaluate(model, data, edits))
    assert [step.done for step in steps if isinstance(step, Progress)] == [0, 64]
    found = steps[-1]
    inputs, _ = next(data.batches(70))
    with torch.no_grad(), tap(model, edits["zero"]):
        wanted = model.score(inputs, torch.zeros(70, dtype=torch.long))["loss"]
    np.testing.assert_allclose(found.loss[1], wanted, rtol=1e-5)
    assert found.accuracy is None


def test_several_snapshots(task_model):
    models = {k: task_model(seed=k).float() for k in (0, 1)}
    data = held_out(20)

    def edits(k):
        return {"full": edit_of("full", models[k])}

    *steps, found = over_snapshots(models, data, edits)
    assert [(step.done, step.total) for step in steps] == [(0, 40), (20, 40)]
    for k, model in models.items():
        alone = finished(evaluate(model, data, edits(k)))
        np.testing.assert_array_equal(found[k].loss, alone.loss)


def test_summaries():
    rng = np.random.default_rng(0)
    first = rng.random(200)
    found = summarise(Evaluation(("full", "worse"), np.stack([first, first + 0.5])))
    assert found[0].difference == 0 and found[0].interval == (0, 0)
    assert found[1].difference == pytest.approx(0.5)
    assert found[0].mean == pytest.approx(first.mean())
    assert found[0].top50 == pytest.approx(np.sort(first)[:50].mean())
    assert (found[0].q25, found[0].q75) == pytest.approx(tuple(np.quantile(first, (0.25, 0.75))))
    noise = rng.normal(0.1, 1, 200)
    (_, noisy) = summarise(Evaluation(("full", "noisy"), np.stack([first, first + noise])))
    low, high = noisy.interval
    width = 2 * 1.96 * noise.std() / np.sqrt(200)
    assert low < noisy.difference < high and high - low == pytest.approx(width, rel=0.15)
    assert (
        summarise(Evaluation(("a", "b"), np.stack([first, noise])))[1]
        == summarise(Evaluation(("a", "b"), np.stack([first, noise])))[1]
    ), "the same seed gives the same interval"


def test_without_a_metric(task_model, image):
    model = task_model(attention="moa")
    edits = {"full": lambda metric, layer: metric}
    with pytest.raises(InputError, match="attention 'moa' has no cross-head metric to ablate"):
        ablate(model, example(image), edits)
    with pytest.raises(InputError, match="'moa' has no cross-head metric to edit"):
        knock_out(model, example(image))
    with pytest.raises(InputError, match="'moa' has no cross-head metric to ablate"):
        finished(evaluate(model.float(), held_out(3), edits))
