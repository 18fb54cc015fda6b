"""The report as one page: its content, and its behaviour in a browser."""

import base64
import io
import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from avalanche_agcn.experiments import page
from avalanche_agcn.experiments.methods import METHODS
from avalanche_agcn.experiments.page import write_html
from avalanche_agcn.experiments.report import refresh_page
from avalanche_agcn.experiments.results import METRICS, find_results
from avalanche_agcn.experiments.tables import table_1

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\"> & \u2028 'x'"
LABEL = "<b>mine</b>"
LAST = {"finetuning": 20.0, LABEL: 50.0, "agcn": 35.0}
"""mAP at the end of each label."""
NAMES = ["person", HOSTILE, "car", "motorcycle"]
STUDY = Path(__file__).parents[2] / "runs" / "studies" / "coco18"


class Reader(HTMLParser):
    """Collects the names of elements, and the texts of scripts."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.scripts = [], []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)

    def handle_data(self, data):
        if self.tags[-1:] == ["script"] and data.strip():
            self.scripts.append(data)


def read_data(path):
    """The data that the page's script draws."""
    return json.loads(Reader(path).scripts[0])


@pytest.fixture(scope="module")
def results(make_result, tmp_path_factory):
    """Two seeds of three methods, with all fields of a run; some names are hostile."""
    root = tmp_path_factory.mktemp("photos")
    Image.new("RGB", (40, 30), (200, 30, 30)).save(root / "1.jpg")
    photo = {"image": "1.jpg", "labels": ["person"]}
    made = []
    for (label, last), seed in product(LAST.items(), (0, 1)):
        settings = {"label": label, "dataset_root": str(root), "method_settings": {"mem_size": 7}}
        counts = {"found": [[40] * 4, [8] * 4], "right": [[10] * 4, [6 + 2 * seed] * 4]}
        own = {
            **{"benchmark": "SplitCOCO", "settings": settings, "class_names": NAMES},
            "per_class_ap": dict(zip(NAMES, (40.0 + 2 * seed, None, 0.0, 100.0), strict=True)),
            "class_ap": [[50.0, None], [40.0, None, 0.0, 100.0]],
            "decisions": {"thresholds": [0.1, 0.5], "true": [10] * 4, **counts},
            "n_images": {"train": [30, 34], "test": [15, 17]},
            "pictures": [photo | {"probabilities": [[90.0, 60.0], [20.0, 2.0, 71.0, 3.0]]}],
            "worst": [
                photo | {"class": "person", "error": "missed", "probability": 20.0},
                photo | {"class": "car", "error": "wrong", "probability": 71.0},
            ],
        }
        if label == "agcn":
            own |= {"acm": [[1.0, 0.25, 0, 0]] * 4, "cooccurrence": [[1.0, 0.5, 0, 0]] * 4}
        made.append(make_result("er" if label == LABEL else label, seed, last + 2 * seed, **own))
    return made


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    """A page with everything that it can show."""
    path = tmp_path_factory.mktemp("page") / "report.html"
    write_html(path, {"SplitCOCO": results})
    return path


def test_the_page_names_the_runs_that_were_continued(make_result, tmp_path):
    made = [make_result("er", seed, 30.0, settings={"continues": f"/a/er-seed{seed}"}) for seed in (0, 1)]
    write_html(tmp_path / "page.html", {"own": made})
    assert "<li>continued from er-seed0, er-seed1</li>" in (tmp_path / "page.html").read_text()


def test_names_are_text_nothing_is_loaded_and_scores_are_means_over_seeds(written, results):
    tags, text = Reader(written).tags, written.read_text(encoding="utf-8")
    assert tags.count("script") == 2
    assert "img" not in tags
    assert "default-src 'none'" in text
    assert set(re.findall(r"https?://[^\"'\s]+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link|@import|url\(", text)
    (part,) = read_data(written)["parts"]
    assert part["classes"] == NAMES
    assert [method["name"] for method in part["methods"]] == ["Fine-Tuning", LABEL, "AGCN"]
    for method, last in zip(part["methods"], LAST.values(), strict=True):
        assert method["seeds"] == [0, 1]
        for metric in METRICS:
            assert method["nested"][metric] == [[80.0], [60.0, last + 1]]
            assert method["deviation"][metric] == [0.0, 1.41]
        assert method["ap"] == [41.0, None, 0.0, 100.0]
        assert method["ap_deviation"] == [1.41, None, 0.0, 0.0]
        # Means over seeds: a sum would count each test image once per seed.
        assert method["decisions"]["true"] == [10] * 4
        assert method["decisions"]["right"] == [[10] * 4, [6 + 1] * 4]
        assert method["thresholds"] == [0.5] * 4
    assert part["best"] == LABEL
    agcn = part["methods"][2]
    assert agcn["acm"][0] == [1000, 250, 0, 0]
    assert agcn["truth"][0] == [1000, 500, 0, 0]
    assert agcn["colour"] == METHODS["agcn"].style.colour
    other = {"thresholds": [0.5], "true": [1] * 4, "found": [[2] * 4], "right": [[1] * 4]}
    mixed = page._decisions([results[0], replace(results[1], decisions=other)])
    assert mixed == results[0].decisions  # counts at other thresholds are not added


def test_each_photo_is_stored_once_unless_it_is_gone_or_has_no_room(written, results, tmp_path, monkeypatch):
    data = read_data(written)
    assert len(data["photos"]) == 1
    for method in data["parts"][0]["methods"]:
        assert method["pictures"][0].keys() == {"photo", "labels", "probabilities"}
        assert method["pictures"][0]["photo"] == method["worst"][0]["photo"] == 0
    image = Image.open(io.BytesIO(base64.b64decode(data["photos"][0].partition(",")[2])))
    assert image.size == (40, 30)
    assert image.convert("RGB").getpixel((20, 15)) == pytest.approx((200, 30, 30), abs=12)
    gone = [replace(one, settings=one.settings | {"dataset_root": str(tmp_path)}) for one in results]
    for shown, n_bytes in ((gone, page.PHOTO_BYTES), (results, 0)):
        monkeypatch.setattr(page, "PHOTO_BYTES", n_bytes)
        write_html(tmp_path / "report.html", {"a": shown})
        data = read_data(tmp_path / "report.html")
        assert data["photos"] == []
        assert data["parts"][0]["missing_photos"] == 9  # one picture and two of the worst, for three methods
        assert not any(method["pictures"] or method["worst"] for method in data["parts"][0]["methods"])


def test_an_unfinished_run_is_shown_if_its_page_can_be_written(results, make_result, tmp_path, capsys):
    stream = {"benchmark": "SplitCOCO", "class_names": NAMES, "nested": {m: [[70.0]] for m in METRICS}}
    ap = dict(zip(NAMES, (70.0, 70.0, None, None), strict=True))
    counts = {"thresholds": [0.5], "true": [3, 4], "found": [[2, 2]], "right": [[1, 1]]}
    scores = {"per_class_ap": ap, "acm": [[1.0, 0.5], [0.5, 1.0]], "decisions": counts}
    running = make_result("ewc", settings={"label": "ewc"}, **stream, **scores)
    refresh_page(tmp_path, results, 7, running)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Run 7 of 7, ewc-seed0: 1 of 2 experiences learned." in text
    ewc = next(m for m in read_data(tmp_path / "report.html")["parts"][0]["methods"] if m["label"] == "ewc")
    assert ewc["nested"]["mAP"] == [[70.0], []]
    assert ewc["decisions"]["true"] == [3, 4, 0, 0]
    assert "| EWC | 1 | 70.0 |" in table_1([running]).markdown()
    one_experience = replace(running, class_names=NAMES[:2], classes_per_experience=[2])
    refresh_page(tmp_path, [], 1, one_experience)
    assert "1 of 1 experience learned." in (tmp_path / "report.html").read_text(encoding="utf-8")
    (tmp_path / "file").write_text("")
    refresh_page(tmp_path / "file", [], 6, results[0])  # the run continues
    assert "report.html was not written" in capsys.readouterr().out


@pytest.fixture(scope="module")
def study(studies, tmp_path_factory):
    """The page of the study on photos, with all its methods."""
    path = tmp_path_factory.mktemp("study") / "report.html"
    parts = {part: find_results([STUDY / part]) for part in studies.coco18_page.IN_HTML}
    write_html(path, studies.coco18_page.streams_of(parts))
    return path


def test_the_page_of_the_study_is_small(study):
    assert study.stat().st_size < 5e6
    assert len(read_data(study)["parts"]) > 1


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    binary = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    driver = shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("there is no Chromium with its driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    flags = ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1280,900")
    for flag in flags:
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield chrome
    chrome.quit()


@pytest.fixture
def opened(browser, written):
    """The page, opened again; at the end no error may have been logged."""
    browser.get_log("browser")
    browser.get(written.as_uri())
    browser.execute_script("sessionStorage.clear()")
    browser.refresh()
    yield browser
    assert browser.get_log("browser") == []


def find(browser, selector):
    return browser.find_elements("css selector", selector)


def texts(browser, selector):
    return [element.text for element in find(browser, selector)]


BARS = ".bars tbody tr"
THRESHOLDS = "[data-view=detail] .maps ~ .tools select"
HARDEST = "[data-view=detail] .photos + h3 ~ .tools select"


def choose(browser, selector, value):
    """Choose an option of a drop-down list."""
    set_value = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('change'))"
    browser.execute_script(set_value, find(browser, selector)[0], value)


def scroll_to(browser, element):
    """Scroll at once, and wait until the page has noticed, since scrolling hides values."""
    at_once = "arguments[0].scrollIntoView({block: 'center', behavior: 'instant'})"
    browser.execute_async_script(f"{at_once}; setTimeout(arguments[1], 100)", element)


def test_hostile_names_are_shown_and_not_run(opened):
    assert opened.title == "SplitCOCO"
    shown = [element.get_attribute("textContent") for element in find(opened, ".heat tbody th")]
    assert shown == NAMES
    assert LABEL in texts(opened, ".chip")[1]
    assert {image.get_attribute("src")[:10] for image in find(opened, "img")} == {"data:image"}


def test_the_page_begins_with_the_winner_and_says_once_what_data_it_has(opened):
    sentence = texts(opened, ".conclusion p")[0]
    assert sentence.startswith(f"{LABEL} has the best mAP last, 51.0 ± 1.4; AGCN follows with 36.0 ± 1.4")
    assert find(opened, "[data-view=detail] select")[0].get_attribute("value") == LABEL
    header = [*texts(opened, "h1"), *texts(opened, ".lead"), *texts(opened, ".facts li")]
    assert header[:3] == ["SplitCOCO", "4 classes", "2 experiences"]
    assert [texts(opened, "section h2")[k] for k in (0, 1)] == ["Comparison", "Classes of each experience"]
    assert texts(opened, ".data tbody th") == ["1", "2"]
    assert texts(opened, "caption") == ["All methods"]  # the paper's Table 1 has other classes


def test_scores_are_explained_below_the_table_and_on_hover(opened):
    explained = dict(zip(texts(opened, "dl.words dt"), texts(opened, "dl.words dd"), strict=True))
    assert {"mAP", "CF1", "OF1", "last", "nested", "forgetting", "forgetting %"} == explained.keys()
    for heading in find(opened, ".compare th[scope=col]"):
        for word in {"CF1", "OF1", "forgetting"} & set(heading.text.split()):
            assert explained[word] in heading.get_attribute("title") or "%" in heading.text


def test_a_table_is_sorted_by_a_heading(opened):
    heading = find(opened, ".compare thead button")[2]
    in_order, best_first = ["Fine-Tuning", LABEL, "AGCN"], [LABEL, "AGCN", "Fine-Tuning"]
    assert heading.text == "mAP last"
    assert texts(opened, ".compare tbody th") == in_order
    for expected, sort in ((best_first, "descending"), (best_first[::-1], "ascending"), (in_order, None)):
        heading.send_keys("\n")  # by keyboard
        assert texts(opened, ".compare tbody th") == expected
        assert find(opened, ".compare th")[2].get_attribute("aria-sort") == sort


def test_values_are_shown_on_hover_and_by_keys(opened):
    from selenium.webdriver import ActionChains, Keys

    plot = find(opened, ".plot svg")[0]
    scroll_to(opened, plot)
    ActionChains(opened).move_to_element_with_offset(plot, plot.size["width"] // 2 - 20, 0).perform()
    (tip,) = find(opened, "#tip")
    assert tip.text.startswith("After experience 2: mAP")
    assert "51.0 ± 1.4" in tip.text
    choose(opened, "[data-view=detail] select", "agcn")  # which has a matrix
    ActionChains(opened).move_to_element(find(opened, ".chip")[0]).perform()
    for experience in (2, 1):  # the first key shows where the cursor is
        plot.send_keys(Keys.ARROW_LEFT)
        assert f"After experience {experience}: mAP" in tip.text
    plot.send_keys(Keys.ESCAPE)
    assert not tip.is_displayed()
    matrix = find(opened, ".map svg[aria-label^='Correlation']")[0]
    scroll_to(opened, matrix)
    matrix.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert f"P(person | {NAMES[1].split()[0]}" in tip.text
    assert "AGCN: 0.250" in tip.text
    assert "co-occurrence of the train images: 0.500" in tip.text


def test_methods_are_switched_on_and_off(opened):
    def drawn():
        return {curve.get_attribute("data-label") for curve in find(opened, ".plot g[data-label]")}

    assert drawn() == set(LAST)
    chip = find(opened, ".chip")[2]
    scroll_to(opened, chip)
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"
    assert drawn() == set(LAST) - {"agcn"}
    assert len(find(opened, ".heat thead th")) == 3
    chip.send_keys(" ")
    assert drawn() == set(LAST)


def test_the_threshold_changes_the_found_labels(opened):
    def shown():
        return texts(opened, ".bars tbody tr:first-child td"), texts(opened, ".photo:first-child li")[:2]

    def hardest():
        return texts(opened, ".photos:last-of-type .photo li")[-2:]

    row, labels = shown()
    assert row[:7] == ["0.50", "10", "8", "7", "87.5", "70.0", "77.8"]
    assert row[-1] == "0.5"  # the best threshold
    assert labels == ["✗ car 0.71", "○ person 0.20"]
    assert hardest() == ["○ person missed 0.20", "shows person"]
    choose(opened, THRESHOLDS, "0.1")
    row, labels = shown()
    assert row[:7] == ["0.10", "10", "40", "10", "25.0", "100.0", "40.0"]
    assert labels == ["✓ person 0.20", "✗ car 0.71"]
    assert hardest() == ["✓ person found 0.20", "shows person"]  # as the labels above have it
    choose(opened, HARDEST, "car")
    assert hardest()[0] == "✗ car found, but not there 0.71"


def test_the_bars_of_a_column_begin_below_each_other(browser, results, tmp_path):
    counts = {"true": [10] * 4, "found": [[40, 10, 8, 40]] * 2, "right": [[1, 10, 6, 2]] * 2}
    uneven = [replace(result, decisions={"thresholds": [0.1, 0.5], **counts}) for result in results]
    write_html(tmp_path / "report.html", {"SplitCOCO": uneven})
    browser.get((tmp_path / "report.html").as_uri())
    rows = [row.find_elements("css selector", "td") for row in find(browser, BARS)]
    assert [row[4].text for row in rows] == ["2.5", "100.0", "75.0", "5.0"]  # precision
    bars = [row[4].find_element("css selector", ".bar") for row in rows]
    assert len({round(bar.rect["x"]) for bar in bars}) == 1


def test_the_page_uses_the_thresholds_of_the_run(browser, results, tmp_path):
    chosen = [replace(result, thresholds=[0.1, 0.5, 0.8, 0.33]) for result in results]
    write_html(tmp_path / "report.html", {"SplitCOCO": chosen})
    browser.get((tmp_path / "report.html").as_uri())
    assert find(browser, f"{THRESHOLDS} option")[0].text == "of the run: 0.10 to 0.80"
    rows = [[cell.text for cell in row.find_elements("css selector", "td")] for row in find(browser, BARS)]
    assert [row[0] for row in rows] == ["0.10", "0.50", "0.80", "0.33"]
    assert [row[2] for row in rows] == ["40", "8", "–", "–"]  # nothing was counted at 0.8 and 0.33
    assert texts(browser, ".photo:first-child li")[0] == "✓ person 0.20"
    choose(browser, HARDEST, "car")
    assert texts(browser, ".photos:last-of-type .photo li")[-2] == "– car not found, and not there 0.71"


def test_the_page_fits_a_phone_and_has_a_dark_mode(opened):
    from selenium.webdriver.support.ui import WebDriverWait

    phone = {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    colour = "return getComputedStyle(document.body).backgroundColor"
    assert opened.execute_script(colour) == "rgb(246, 247, 249)"
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    night = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", night)
    try:
        fits = "return document.documentElement.scrollWidth === 390"
        WebDriverWait(opened, 10).until(lambda page: page.execute_script(fits))  # plots are redrawn
        assert opened.execute_script(colour) == "rgb(18, 21, 26)"
        # A table that does not fit says so, until it has been scrolled to its end.
        table = find(opened, ".scroll")[0]
        hint = table.find_element("xpath", "preceding-sibling::p")
        WebDriverWait(opened, 10).until(lambda page: "more" in table.get_attribute("class"))
        assert hint.text == "scroll sideways for more →"
        opened.execute_script("arguments[0].scrollLeft = 9999", table)
        WebDriverWait(opened, 10).until(lambda page: "more" not in table.get_attribute("class"))
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_axis_of_forgetting_has_zero_and_at_least_ten_points(browser, make_result, tmp_path):
    rows = [[50.0], [50.0, 40.0], [49.9, 40.1, 30.0]]
    stream = {"class_names": NAMES[:3], "classes_per_experience": [1, 1, 1]}
    scores = {"per_class_ap": dict.fromkeys(NAMES[:3], 40.0), "nested": dict.fromkeys(METRICS, rows)}
    write_html(tmp_path / "report.html", {"three": [make_result("er", **stream, **scores)]})
    browser.get((tmp_path / "report.html").as_uri())
    _, forgetting = find(browser, ".plot svg")
    ticks = {text.text for text in forgetting.find_elements("css selector", "text[text-anchor=end]")}
    assert {"0", "10"} <= ticks
    assert len(forgetting.find_elements("css selector", ".zero")) == 1


def test_the_page_of_the_study_opens_at_once(browser, study):
    browser.get_log("browser")
    browser.execute_cdp_cmd("Performance.enable", {"timeDomain": "threadTicks"})
    browser.get(study.as_uri())
    metrics = browser.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
    seconds = {metric["name"]: metric["value"] for metric in metrics}
    assert 0 < seconds["TaskDuration"] < 2  # of computing, so that other processes do not count
    tabs = find(browser, "[role=tab]")
    for k, tab in enumerate(tabs):
        tab.click()
        assert [part.is_displayed() for part in find(browser, ".part")] == [k == i for i in range(len(tabs))]
    assert browser.get_log("browser") == []
