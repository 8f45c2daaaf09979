"""Figures: described once, drawn twice.

    builder (metric.py, attention.py, …) → spec.Figure ─┬→ screen.to_plotly   plotly, light or dark
                                                        ├→ paper.save/render  PDF, SVG, PNG
                                                        └→ sidecar.to_npz/to_csv/to_json

>>> from damcha.figures import metric_figure
>>> from damcha.figures.paper import save
>>> figure = metric_figure(metric, n_heads=8, view="symmetric")
>>> save(figure.sized("neurips"), "fig.pdf")

A builder decides everything that a reader could dispute: which numbers, colour limits (symmetric
about zero where signed; one ``Scale`` for all panels that are compared), order, words. Renderers
translate. ``screen`` (plotly) and ``paper`` (matplotlib) are imported by their own names, so that
neither is loaded where it is not used. Nothing here imports torch.

To add a figure of marks that exist (most do with these): write ``figures/x.py`` with one pure
function ``x_figure(result, provenance) -> Figure``, pass what cannot be drawn to
``words.sentence_instead`` and return a ``Sentence`` then, name it here, and test the numbers in
``tests/unit/figures/test_x.py``.

To add a mark (``Contour``, ``Surface`` with its camera, …): a frozen dataclass in ``spec.py`` with
every choice as a field (limits through a ``scale``, camera, selection), added to ``Mark``; then one
registered function each in ``screen.py`` (``_draw``), ``paper.py`` (``_draw``) and ``sidecar.py``
(``_arrays``, ``_rows``). A mark without one is refused with a TypeError that says where to add it.
"""

from damcha.figures.attention import attention_figure, attention_over_input_figure
from damcha.figures.curves import curves_figure, runs_figure
from damcha.figures.metric import TITLES, MetricView, metric_figure
from damcha.figures.predictions import distribution_figure, reconstruction_figure, surprise_figure
from damcha.figures.spec import Figure, Provenance
from damcha.figures.spectrum import spectrum_figure
from damcha.figures.style import VENUES

__all__ = [
    "TITLES",
    "VENUES",
    "Figure",
    "MetricView",
    "Provenance",
    "attention_figure",
    "attention_over_input_figure",
    "curves_figure",
    "distribution_figure",
    "metric_figure",
    "reconstruction_figure",
    "runs_figure",
    "spectrum_figure",
    "surprise_figure",
]
