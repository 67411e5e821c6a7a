"""The HTML report: complete, self-contained, and safe with hostile names."""

import html.parser
import shutil
import subprocess

import faults
import numpy as np
import pytest
import realistic
from models import clone, mlp, node_named, normal

import onnx_verify
from onnx_verify import compare, find_mismatch

pytest.importorskip("jinja2")

from onnx_verify.reporting.report import render_report, write_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page(html.parser.HTMLParser):
    """Collects tags, their attributes and the text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.links, self.text, self._open = [], [], "", []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for key, value in attributes if key in ("src", "href", "xlink:href", "data", "action")]
        if tag != "meta":
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def search():
    sound = realistic.cnn()
    fault = next(each for each in faults.small_faults() if each.label == "concat order")
    return find_mismatch(faults.broken(sound, fault), (normal(2, 3, 12, 12),), reference=sound, exhaustive=True)


def test_the_page_holds_the_node_the_profile_and_the_worst_element(search):
    page = Page(render_report(search, commands=["onnx-verify bisect b.onnx a.onnx"]))
    metrics = search.verdict.cases[0].outputs[0].metrics
    assert "Concat_cat" in page.text
    assert page.tags.count("rect") >= len(search.profile) + len(metrics.histogram)
    assert f"should be {metrics.worst_reference}" in page.text
    assert "onnx-verify bisect b.onnx a.onnx" in page.text
    assert page.tags.count("text") == len(metrics.histogram)
    assert page._open == []


def test_the_page_refers_to_nothing_outside(search):
    text = render_report(search)
    page = Page(text)
    assert page.links == []
    assert "http://" not in text
    assert "https://" not in text
    assert "script" not in page.tags


def test_a_plain_verdict_has_a_page_too():
    page = Page(render_report(compare(mlp(), mlp(), (normal(2, 8),))))
    assert "agrees with" in page.text
    assert "disagrees" not in page.text


def test_nan_infinity_and_structural_faults_have_a_page():
    verdict = compare(lambda x: (x * np.nan, x, x), lambda x: (x, x * np.inf, x[:1]), (np.ones(3),))
    page = Page(render_report(verdict))
    assert "should be [3]" in page.text


def test_hostile_names_are_text():
    evil = "</code><script>alert(1)</script>"
    model = clone(mlp())
    node_named(model, "relu2").output[0] = evil
    node_named(model, "relu2").name = evil
    model.graph.output[0].name = evil
    broken = clone(model)
    node_named(broken, evil).op_type = "Abs"
    page = Page(render_report(find_mismatch(broken, (normal(2, 8),), reference=model)))
    assert "script" not in page.tags
    assert evil in page.text


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(search, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(onnx_verify.OnnxVerifyError, match="cannot be written"):
        write_report(search, tmp_path / "folder")
    assert list(tmp_path.rglob("*.part")) == []


@pytest.mark.skipif(BROWSER is None, reason="needs chromium")
def test_a_real_browser_shows_the_page_without_a_network(search, tmp_path):
    page = write_report(search, tmp_path / "report.html")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"]
    shot = tmp_path / "shot.png"
    run = subprocess.run(
        [BROWSER, *flags, *offline, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=90, check=True
    )
    assert "Concat_cat" in run.stdout
    assert "<svg" in run.stdout
    subprocess.run(
        [BROWSER, *flags, *offline, f"--screenshot={shot}", page.as_uri()], capture_output=True, timeout=90, check=True
    )
    assert shot.stat().st_size > 5000
