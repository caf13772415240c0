"""The report's page in a real browser, from a file, as a person opens it."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

RELIBRA = Path(os.environ["RELIBRA_BUILD_DIR"]) / "bin" / "relibra"
CHARTS = (
    "step-time",
    "imbalance",
    "layer-imbalance",
    "heat-before",
    "heat-after",
    "experts",
    "copies",
    "moves",
    "limits",
)
LAYERS, MICRO_BATCHES, RANKS, EXPERTS = 3, 8, 8, 32


def relibra(*words: object) -> str:
    command = [str(word) for word in (RELIBRA, *words)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def write_report(folder: Path, layers: int, micro_batches: int) -> Path:
    cluster = ("--nodes", 2, "--gpus-per-node", RANKS // 2)
    shape = ("--experts", EXPERTS, "--layers", layers, "--micro-batches", micro_batches)
    trace, report = folder / "batch.npz", folder / "report.html"
    relibra("trace", "generate", *cluster, *shape, "--seed", 3, "-o", trace)
    relibra("report", "--trace", trace, *cluster, "-o", report)
    return report


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tmp_path_factory.mktemp("report"), LAYERS, MICRO_BATCHES)


class Opened:
    """A page with all that it asked for and complained of."""

    def __init__(self, page: Page, file: Path) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(file.as_uri())
        page.wait_for_selector("#limits .main-svg, #limits.empty")

    def heat(self, chart: str) -> list[list[int]]:
        """Pairs of every rank in every micro-batch, as the heat map shows them."""
        rows = f"Array.from(document.getElementById('{chart}').data[0].customdata, (r) => [...r])"
        return self.page.evaluate(rows)


@pytest.fixture
def opened(browser: Browser, report: Path) -> Iterator[Opened]:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
    yield Opened(context.new_page(), report)
    context.close()


def test_every_chart_is_drawn_without_complaint_or_request(opened: Opened, report: Path) -> None:
    for chart in CHARTS:
        box = opened.page.locator(f"#{chart} .main-svg").first.bounding_box()
        assert box is not None, chart
        assert box["width"] > 200 and box["height"] > 150, chart
    assert opened.complaints == []
    assert opened.requests == [report.as_uri()]


def test_every_axis_that_counts_something_says_what(opened: Opened) -> None:
    for chart in CHARTS:
        titles = opened.page.locator(f"#{chart} .xtitle, #{chart} .ytitle").all_text_contents()
        assert len(titles) == (1 if chart == "step-time" else 2), chart
        assert all(titles), chart


def test_the_curves_are_of_all_four_policies(opened: Opened) -> None:
    names = "document.getElementById('imbalance').data.map((t) => [t.name, t.y.length])"
    assert opened.page.evaluate(names) == [
        [name, MICRO_BATCHES] for name in ("None", "EPLB", "ReLibra", "Ideal")
    ]


def test_the_picker_changes_the_heat_maps(opened: Opened) -> None:
    seen = []
    for layer in range(LAYERS):
        opened.page.select_option("#layer", str(layer))
        before, after = opened.heat("heat-before"), opened.heat("heat-after")
        assert len(before) == len(after) == RANKS
        assert all(len(row) == MICRO_BATCHES for row in before + after)
        # A plan moves pairs between ranks, it loses none.
        for m in range(MICRO_BATCHES):
            assert sum(row[m] for row in before) == sum(row[m] for row in after)
        assert max(map(max, after)) < max(map(max, before))
        seen.append(before)
    assert all(seen[a] != seen[b] for a in range(LAYERS) for b in range(a))


def test_the_buttons_go_from_layer_to_layer(opened: Opened) -> None:
    opened.page.select_option("#layer", "0")
    first = opened.heat("heat-before")
    assert opened.page.is_disabled("#layer-before")
    opened.page.click("#layer-after")
    assert opened.page.input_value("#layer") == "1"
    assert opened.heat("heat-before") != first
    opened.page.click("#layer-before")
    assert opened.heat("heat-before") == first


def test_a_point_of_the_curve_by_layer_shows_its_layer(opened: Opened) -> None:
    opened.page.select_option("#layer", "0")
    point = opened.page.locator("#layer-imbalance .scatterlayer .trace").first
    opened.page.locator("#layer-imbalance").scroll_into_view_if_needed()
    box = point.locator(".point").nth(2).bounding_box()
    assert box is not None
    opened.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    opened.page.wait_for_function("document.getElementById('layer').value === '2'")
    assert opened.complaints == []


@pytest.mark.parametrize("width", [360, 768, 1280, 1920])
def test_nothing_is_wider_than_the_window(browser: Browser, report: Path, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 800},
        is_mobile=width < 500,
        has_touch=width < 500,
    )
    page = Opened(context.new_page(), report).page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    context.close()


def test_the_smallest_batch_is_shown(browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context()
    opened = Opened(context.new_page(), write_report(tmp_path, layers=1, micro_batches=1))
    assert opened.complaints == []
    assert len(opened.heat("heat-after")) == RANKS
    assert opened.page.is_disabled("#layer-before") and opened.page.is_disabled("#layer-after")
    context.close()


def test_a_batch_without_tokens_is_shown(browser: Browser, tmp_path: Path) -> None:
    trace, report = tmp_path / "empty.json", tmp_path / "report.html"
    trace.write_text('{"num_experts": 2, "loads": [[[[0, 0], [0, 0]]]]}')
    relibra("report", "--trace", trace, "--nodes", 1, "--gpus-per-node", 2, "-o", report)
    context = browser.new_context()
    opened = Opened(context.new_page(), report)
    assert opened.complaints == []
    assert "NaN" not in opened.page.inner_text("body")
    assert "Infinity" not in opened.page.inner_text("body")
    context.close()
