from __future__ import annotations

import pytest

pytestmark = pytest.mark.browser

LAPTOP, PHONE = (1440, 900), (390, 844)
DRAWN = "document.documentElement.dataset.drawn"


def opened(open_page, report, size):
    page = open_page(*size)
    page.goto(report.html.as_uri())
    page.wait_for_function(DRAWN)
    return page


def settled(page):
    """Two frames later, when what was picked has reached every chart."""
    page.wait_for_timeout(300)


def opacities(page, chart):
    """How many marks a chart draws at each opacity."""
    return page.evaluate(
        """key => {
            const count = {};
            for (const mark of document.querySelectorAll(`#${key} .mark-rect.role-mark path`)) {
                const opacity = mark.getAttribute("opacity") ?? mark.style.opacity ?? "1";
                count[opacity || "1"] = (count[opacity || "1"] ?? 0) + 1;
            }
            return count;
        }""",
        chart,
    )


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_opens_without_an_error_or_a_request(open_page, report, size):
    page = opened(open_page, report, size)
    assert page.complaints == []
    assert page.requests == [report.html.as_uri()]


@pytest.mark.parametrize("size", [LAPTOP, PHONE], ids=["laptop", "phone"])
def test_every_chart_is_drawn_and_fits(open_page, report, size):
    page = opened(open_page, report, size)
    places = page.locator(".chart").count()
    assert page.evaluate(DRAWN) == str(places)
    assert places == 25  # comparison, and twelve of each run
    assert page.locator(".chart svg").count() == 23
    assert page.locator(".chart canvas").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    wide = (
        "[...document.querySelectorAll('.chart > *')].filter(c => c.scrollWidth > c.parentElement.clientWidth).length"
    )
    assert page.evaluate(wide) == 0


def test_sentences_are_seen_without_scrolling(open_page, report):
    page = opened(open_page, report, LAPTOP)
    for article in page.locator(".sentences .first").all():
        box = article.bounding_box()
        assert box["y"] + box["height"] < LAPTOP[1]
    assert all("Ψ" in text for text in page.locator(".sentences .first").all_inner_texts())


def test_a_click_on_a_layer_picks_it_in_every_chart(open_page, report):
    page = opened(open_page, report, LAPTOP)
    assert set(opacities(page, "overlap-0")) == {"1"}
    page.locator("#overlap-0 .mark-rect.role-mark path").first.click()
    settled(page)
    assert page.locator("#picked").is_visible()
    assert page.locator("#picked").inner_text().startswith("Showing layer ")
    for chart in ("overlap-0", "overlap-1"):
        assert "0.15" in opacities(page, chart)
    page.locator("#picked button").click()
    settled(page)
    assert not page.locator("#picked").is_visible()
    assert set(opacities(page, "overlap-0")) == set(opacities(page, "overlap-1")) == {"1"}
    assert page.complaints == []


def test_a_click_on_a_rank_picks_it_in_every_chart(open_page, report):
    page = opened(open_page, report, LAPTOP)
    page.locator("#breakdown-1 .mark-rect.role-mark path").first.click()
    settled(page)
    assert page.locator("#picked").inner_text().startswith("Showing rank ")
    for chart in ("breakdown-0", "breakdown-1", "peak-0"):
        assert "0.15" in opacities(page, chart)


def test_dragging_over_the_strip_zooms_the_lanes(open_page, report):
    page = opened(open_page, report, LAPTOP)
    canvas = page.locator("#timeline-0 canvas")
    canvas.scroll_into_view_if_needed()
    before = canvas.screenshot()
    box = canvas.bounding_box()
    y = box["y"] + 50
    page.mouse.move(box["x"] + box["width"] * 0.5, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, y, steps=5)
    page.mouse.up()
    page.mouse.move(0, 0)
    settled(page)
    assert canvas.screenshot() != before
    assert page.complaints == []


def test_tables_unfold(open_page, report):
    page = opened(open_page, report, PHONE)
    details = page.locator("details", has=page.locator("summary", has_text="Volume of every rank")).first
    assert not details.locator("table").is_visible()
    details.locator("summary").click()
    assert details.locator("table").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == PHONE[0]
