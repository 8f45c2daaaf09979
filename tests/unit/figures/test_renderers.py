"""One description, drawn twice and written down once: all three must agree."""

import base64
import io
import json
import re
import shutil
import struct
import subprocess
import sys
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image

from damcha.errors import ConfigError, InputError
from damcha.figures import VENUES, metric_figure, paper, sidecar
from damcha.figures.screen import to_plotly
from damcha.figures.spec import Figure, Heatmap, Panel, Scale, Tokens, scales


def page_of(figure):
    with matplotlib.rc_context(paper.RC):
        return paper.draw(figure)


@pytest.mark.parametrize("dark", [False, True])
def test_every_kind_is_drawn_on_screen(figure, dark):
    drawn = json.loads(to_plotly(figure, dark).to_json())
    assert drawn["data"]
    assert drawn["layout"]["height"] > 80
    assert "dtype" in json.dumps(drawn) or "constant" in json.dumps(drawn)


@pytest.mark.parametrize("fmt", ["pdf", "svg", "png"])
def test_every_kind_is_drawn_on_paper_and_twice_the_same(figure, fmt):
    content = paper.render(figure, fmt, dpi=80)
    assert content == paper.render(figure, fmt, dpi=80)
    assert content.startswith({"pdf": b"%PDF", "svg": b"<?xml", "png": b"\x89PNG"}[fmt])


def test_every_kind_has_sidecars_and_twice_the_same(figure):
    for write in (sidecar.to_npz, sidecar.to_csv, sidecar.to_json):
        assert write(figure) == write(figure)
    story = json.loads(sidecar.to_json(figure))
    assert story["provenance"]["weights_digest"] == "ab" * 32
    assert story["provenance"]["settings"] == {"view": "full"}
    numbers = np.load(io.BytesIO(sidecar.to_npz(figure)), allow_pickle=False)
    assert set(story["arrays"]) <= set(numbers.files)
    assert json.loads(str(numbers["provenance"])) == story


def test_limits_and_values_agree_on_screen_on_paper_and_in_the_sidecar(every):
    checked = 0
    for figure in every.values():
        screen, page = to_plotly(figure), page_of(figure)
        story = json.loads(sidecar.to_json(figure))
        numbers = np.load(io.BytesIO(sidecar.to_npz(figure)), allow_pickle=False)
        maps = [trace for trace in screen.data if trace.type == "heatmap"]
        for k, panel in enumerate(figure.panels):
            if not isinstance(panel.mark, Heatmap):
                continue
            trace = maps.pop(0)
            axis = screen.layout[trace.coloraxis]
            image = page.axes[k].images[0]
            limits = panel.mark.scale.limits
            assert (axis.cmin, axis.cmax) == limits == image.get_clim()
            assert tuple(numbers[f"panel_{k}.limits"]) == limits
            assert tuple(story["panels"][k]["scale"]["limits"]) == limits
            for values in (trace.z, image.get_array(), numbers[f"panel_{k}.values"]):
                assert np.array_equal(np.asarray(values), panel.mark.values)
            assert image.get_interpolation() == "none"
            # plotly ignores zmid beside zmin and zmax: only the symmetric limits centre zero.
            assert axis.cmid is None and trace.zmin is None
            if panel.mark.scale.colours == "diverging":
                assert limits[0] == -limits[1]
            checked += 1
    assert checked >= 8


def test_three_panels_share_one_colour_bar(every):
    drawn = to_plotly(every["heads"])
    assert {trace.coloraxis for trace in drawn.data} == {"coloraxis"}
    assert len(scales(every["heads"])) == 1
    assert len(page_of(every["heads"]).axes) == 4 + 1


def test_panels_with_their_own_scales_get_their_own_bars():
    values = np.arange(4, dtype=np.float32).reshape(2, 2)
    marks = [
        Heatmap(values, Scale((0.0, high), "sequential"), ("0", "1"), ("0", "1"))
        for high in (3.0, 6.0)
    ]
    figure = Figure(name="two", panels=tuple(map(Panel, marks)), n_columns=2)
    drawn = to_plotly(figure)
    assert [drawn.layout[trace.coloraxis].cmax for trace in drawn.data] == [3.0, 6.0]
    assert len(page_of(figure).axes) == 4


def test_matrices_travel_as_float32():
    metric = np.random.default_rng(0).normal(size=(512, 512)).astype(np.float32)
    drawn = to_plotly(metric_figure(metric, 8)).to_json()
    assert json.loads(drawn)["data"][0]["z"]["dtype"] == "f4"
    assert len(drawn) < 1_000_000


def test_cells_can_be_clicked(every):
    heat, clicks = to_plotly(every["blocks"]).data
    assert heat.type == "heatmap" and clicks.type == "scatter"
    assert list(map(tuple, clicks.customdata)) == [(a, b) for a in range(4) for b in range(4)]
    assert (clicks.y[6], clicks.x[6]) == ("query head 1", "key head 2")
    assert clicks.marker.opacity == 0
    assert len(to_plotly(every["metric"]).data) == 1


def test_hover_names_the_cell(every):
    (trace,) = to_plotly(every["metric"]).data
    assert (trace.y[5], trace.x[14]) == ("query head 1, i 1", "key head 3, j 2")
    assert trace.hovertemplate.startswith("%{y}<br>%{x}<br>")


def test_ticks_stand_beside_cells_not_on_them(every):
    # On a cell plotly would show the tick's "1" where the pointer should say "query head 1".
    axis = to_plotly(every["blocks"]).layout.yaxis
    assert list(axis.ticktext) == ["0", "1", "2", "3"]
    off = [abs(at - k) for k, at in enumerate(axis.tickvals)]
    assert all(4 / 10_000 < shift < 0.01 for shift in off)


def test_words_of_users_are_not_html(every):
    for name in ("attention", "tokens", "distribution"):
        assert "<b>$x" not in json.dumps(to_plotly(every[name]).to_plotly_json(), default=str)


def test_a_log_axis_and_a_legend(every):
    assert to_plotly(every["spectrum"]).layout.yaxis2.type == "log"
    assert to_plotly(every["curves"]).layout.showlegend


@pytest.mark.parametrize(("venue", "column"), [("icml", "single"), ("ieee", "double")])
def test_the_pdf_page_is_as_wide_as_the_column(every, venue, column):
    figure = every["metric"].sized(venue, column)
    box = re.search(rb"/MediaBox \[ ?([\d. ]+)\]", paper.render(figure, "pdf"))
    width = VENUES[venue][column == "double"]
    assert float(box.group(1).split()[2]) / 72 == pytest.approx(width, abs=0.01)


def test_every_venue_has_its_width(every):
    for venue, widths in VENUES.items():
        for column, width in zip(("single", "double"), widths, strict=True):
            page = page_of(every["constant"].sized(venue, column))
            assert page.get_size_inches()[0] == pytest.approx(width, abs=0.001)


def test_widths_of_svg_and_png(every):
    root = ET.fromstring(paper.render(every["metric"], "svg"))
    assert float(root.get("width").removesuffix("pt")) / 72 == pytest.approx(3.25, abs=0.01)
    content = paper.render(every["metric"], "png", dpi=300)
    assert struct.unpack(">I", content[16:20])[0] == 975


def test_pdf_embeds_type_42_fonts_and_selectable_text(every, tmp_path):
    path = paper.save(every["heads"].sized("icml"), tmp_path / "heads.pdf")
    content = path.read_bytes()
    assert b"/Type3" not in content and b"/FontFile2" in content
    assert b"CreationDate" not in content
    if shutil.which("pdffonts"):
        fonts = subprocess.run(["pdffonts", path], capture_output=True, text=True, check=True)
        assert "TrueType" in fonts.stdout and "Type 3" not in fonts.stdout
        text = subprocess.run(["pdftotext", path, "-"], capture_output=True, text=True, check=True)
        assert "head 3" in text.stdout


def test_svg_text_is_text_and_cells_are_exact(every):
    content = paper.render(every["metric"], "svg").decode()
    assert "key head b</text>" in content
    size = re.search(r"<image [^>]*?width=\"(\d+)", content)
    assert size is not None
    data = re.search(r"base64,([^\"]+)\"", content).group(1)
    picture = Image.open(io.BytesIO(base64.b64decode(data)))
    assert picture.size == (16, 16)


def test_zero_is_white_on_paper():
    metric = np.diag([1.0, -1.0, 0.5, 0.25]).astype(np.float32)
    figure = metric_figure(metric, 2)
    image = page_of(figure).axes[0].images[0]
    assert np.allclose(image.cmap(image.norm(0.0))[:3], 1, atol=0.005)


def test_panels_stay_on_the_page_and_do_not_overlap(figure):
    for venue, column in (("icml", "single"), ("acl", "single"), ("ieee", "double")):
        page = page_of(figure.sized(venue, column))
        page.draw_without_rendering()
        renderer = page.canvas.get_renderer()
        boxes = [axes.get_tightbbox(renderer) for axes in page.axes]
        for k, box in enumerate(boxes):
            assert box.x0 >= -1 and box.y0 >= -1
            assert box.x1 <= page.bbox.x1 + 1 and box.y1 <= page.bbox.y1 + 1
            for other in boxes[:k]:
                apart = box.x0 >= other.x1 - 1 or other.x0 >= box.x1 - 1
                assert apart or box.y0 >= other.y1 - 1 or other.y0 >= box.y1 - 1


@pytest.mark.parametrize("heads", [8, 16, 32])
def test_head_labels_do_not_touch_at_single_column(heads):
    metric = np.random.default_rng(0).normal(size=(heads * 4,) * 2).astype(np.float32)
    page = page_of(metric_figure(metric, heads))
    page.draw_without_rendering()
    for axis in (page.axes[0].xaxis, page.axes[0].yaxis):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert all(label.get_fontsize() >= 7 for label in axis.get_ticklabels())
        assert not any(a.overlaps(b) for a, b in pairwise(boxes))


def test_threads_get_their_own_figures(every):
    alone = {name: paper.render(figure, "svg") for name, figure in every.items()}
    with ThreadPoolExecutor(4) as pool:
        futures = {name: pool.submit(paper.render, every[name], "svg") for name in every}
    assert {name: future.result() for name, future in futures.items()} == alone


def test_rendering_leaves_the_settings_of_matplotlib_alone(every):
    before = dict(matplotlib.rcParams)
    paper.render(every["blocks"], "pdf")
    assert dict(matplotlib.rcParams) == before


def test_save_names_what_it_cannot_write(every, tmp_path):
    with pytest.raises(InputError, match=r"'.jpg' is not a figure format; choose one of .pdf"):
        paper.save(every["metric"], tmp_path / "x.jpg")
    with pytest.raises(InputError, match=r"x\.png: cannot be written"):
        paper.save(every["metric"], tmp_path / "missing" / "x.png")
    with pytest.raises(ConfigError, match="'nature' is not known; choose one of neurips"):
        paper.save(every["metric"].sized("nature"), tmp_path / "x.png")
    with pytest.raises(ConfigError, match="'triple' is not one of single, double"):
        paper.save(every["metric"].sized("icml", "triple"), tmp_path / "x.png")
    assert list(tmp_path.iterdir()) == []


def test_csv_has_one_number_a_line(every):
    lines = sidecar.to_csv(every["metric"]).decode().splitlines()
    assert lines[0] == "panel,series,y,x,value"
    assert len(lines) == 1 + 16 * 16
    value = every["metric"].panels[0].mark.values[1, 5]
    assert lines[1 + 16 + 5] == f'0,,"query head 0, i 1","key head 1, j 1",{float(value)}'


def test_csv_runs_nothing_in_a_spreadsheet():
    tokens = Tokens(("=cmd|x", "="), np.zeros(2, np.float32), Scale((0.0, 1.0), "sequential"))
    lines = sidecar.to_csv(Figure(name="x", panels=(Panel(tokens),))).decode().splitlines()
    assert lines[1:] == ["0,,'=cmd|x,0,0.0", "0,,=,1,0.0"]


def test_an_unknown_mark_says_where_to_add_it():
    figure = Figure(name="x", panels=(Panel(mark=object()),))
    with pytest.raises(TypeError, match=r"no screen renderer for object; add one to screen.py"):
        to_plotly(figure)
    with pytest.raises(TypeError, match=r"no paper renderer for object; add one to paper.py"):
        paper.render(figure, "png")
    with pytest.raises(TypeError, match=r"no sidecar for object; add one to sidecar.py"):
        sidecar.to_npz(figure)
    with pytest.raises(TypeError, match=r"no sidecar for object; add one to sidecar.py"):
        sidecar.to_csv(figure)


def test_builders_load_neither_torch_nor_a_renderer():
    code = "import sys, damcha.figures; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "plotly", "matplotlib"} & set(done.stdout.split())
