from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest
from fake_runs import empty_run, fake_run

from tracekit.report import wording
from tracekit.report.page import dashboard
from tracekit.report.page_tables import MAX_TABLE_ROWS, as_table, first_rows
from tracekit.report.sections import chart_json
from tracekit.report.write import analyse


class Page(HTMLParser):
    """What a browser would see: tags with their attributes, texts, and what stands in chart scripts."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.text, self.charts, self._chart, self._inside = [], [], {}, None, []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self._inside.append(tag)
        self._chart = attributes.get("data-chart") if tag == "script" else None

    def handle_endtag(self, tag):
        if tag in self._inside:
            del self._inside[len(self._inside) - 1 - self._inside[::-1].index(tag) :]
        self._chart = None

    def handle_data(self, data):
        if self._chart:
            self.charts[self._chart] = json.loads(data)
        elif not {"script", "style"} & set(self._inside):
            self.text.append(data)

    def attributes(self, name):
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def page_of(*runs, hta=False):
    return Page(dashboard([analyse(run, run.name, hta=hta) for run in runs]))


@pytest.fixture(scope="module")
def page():
    return page_of(fake_run("fsdp2"), fake_run("zero2"))


def test_sentences_come_first(page):
    words_shown = [text for text in page.text if text.strip()]
    sentence = next(i for i, text in enumerate(words_shown) if "moved 2.00Ψ" in text)
    assert sentence < words_shown.index("How much moved", sentence)


def test_each_question_has_a_chart_a_run_and_a_table(page):
    for question in ("volume", "ledger", "overlap", "timeline", "breakdown", "memory", "peak"):
        assert {f"{question}-0", f"{question}-1"} <= set(page.charts)
    assert "comparison-0" in page.charts
    assert sum(tag == "table" for tag, _ in page.tags) == sum(tag == "details" for tag, _ in page.tags) > 20


def test_nothing_in_the_page_asks_for_anything(page):
    for name in ("src", "href", "data", "action", "poster", "srcset"):
        assert all(value.startswith(("#", "data:")) for value in page.attributes(name))
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "Content-Security-Policy" in a.values())
    assert "default-src 'none'" in policy
    assert "http" not in policy
    for spec in page.charts.values():
        assert '"url"' not in json.dumps(spec)


def test_what_hta_says_is_there_when_asked_for():
    assert "Temporal breakdown" in page_of(fake_run(num_steps=1), hta=True).text
    without = page_of(fake_run(num_steps=1)).text
    assert "Temporal breakdown" not in without
    assert any("tracekit report --hta" in text for text in without)


def test_one_run_alone_is_not_compared():
    assert "comparison-0" not in page_of(fake_run()).charts


def test_runs_of_one_scale():
    page = page_of(fake_run("short", num_steps=1), fake_run("long"))
    domains = [page.charts[f"breakdown-{i}"]["encoding"]["x"]["scale"]["domain"] for i in (0, 1)]
    assert domains == [[0, 1.0], [0, 1.0]]


def test_an_empty_run_has_sentences_in_place_of_charts():
    page = page_of(empty_run())
    assert page.charts == {}
    text = " ".join(page.text)
    for sentence in (
        "The trace holds nothing for “How much moved”, “What was hidden”, “Why it was exposed”, “Who waited for whom”",
        "No communication was recorded",
        "no memory events",
        "unknown (no manifest)",
    ):
        assert sentence in text


def test_names_cannot_break_out():
    odd = '</script><script>alert(1)</script><img src=x onerror=alert(1)>"\u2028{{ 7 * 7 }}'
    run = fake_run("<b>bold</b>")
    run.work = run.work.with_columns(name=pl.lit(odd), layer=pl.lit(odd))
    run.collectives = run.collectives.with_columns(layer=pl.lit(odd), group=pl.lit(odd))
    html = dashboard([analyse(run, odd)])
    page = Page(html)
    assert not any(tag in ("img", "b") for tag, _ in page.tags)
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert sum(not attributes for attributes in scripts) == 2  # the library and the page's own
    assert "<script>alert" not in html
    shown = odd.replace("\u2028", "\\u2028")
    assert shown in "".join(page.text)
    assert "49" not in next(text for text in page.text if shown in text)


def test_names_that_do_not_print_are_spelt_out_and_cut():
    odd = "\x1b[31m\u202e\0" + "x" * 10**4
    run = fake_run(odd)
    run.work = run.work.with_columns(name=pl.lit(odd), layer=pl.lit(odd))
    run.collectives = run.collectives.with_columns(layer=pl.lit(odd))
    html = dashboard([analyse(run, odd), analyse(run, odd)])
    assert [mark for mark in ("\x1b", "\u202e", "\0") if mark in html] == []
    assert "x" * 4_001 not in html
    assert "\\x1b[31m\\u202e\\x00xx" in html


def test_chart_json_holds_no_tag_and_no_line_separator():
    text = chart_json({"title": ["</script><!--&\u2028\u2029"], "\u2028": 1.5})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"title": ["</script><!--&\\u2028\\u2029"], "\u2028": 1.5}


def test_the_same_runs_make_the_same_page():
    # Sentences are another module's.
    one, two = (dashboard([replace(analyse(fake_run(), "fsdp2"), sentences=["The sentence."])]) for _ in range(2))
    assert one == two


def test_long_tables_are_cut_and_say_so():
    table = first_rows(fake_run(num_steps=20).collectives, "Every collective")
    assert len(table.rows) == MAX_TABLE_ROWS
    assert "of 480 rows" in table.note


def test_a_table_of_nothing():
    table = as_table(pl.DataFrame(schema={"rank": pl.Int32}), "Ranks")
    assert table.rows == []


def test_comparison_in_words():
    rows = wording.comparison(
        [
            ("a", {"step_ns": 2e6, "hidden_ratio": 0.5, "measured_psi": 3.0}),
            ("b", {"step_ns": 1e6, "hidden_ratio": 0.25}),
        ]
    )
    shown = {row[0]: row[1:] for row in rows}
    assert shown[""] == ("a", "b", "difference")
    assert shown["step"] == ("2.00 ms", "1.00 ms", "−1.00 ms (−50 %)")
    assert shown["communication hidden"] == ("50.0 %", "25.0 %", "−25.0 points")
    assert shown["volume measured"] == ("3.000Ψ", "–", "–")
