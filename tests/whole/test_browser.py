"""The browser that tests of pages drive: what it waits for, sees, and refuses to reach."""

import pytest

from tests.support import browser as browsers
from tests.support.browser import BrowserError

pytestmark = pytest.mark.slow

PAGE = """<!doctype html><title>page</title>
<button id="more">More</button><input id="filter" value="old"><p hidden>never seen</p><ol></ol>
<script>
document.getElementById('more').onclick = () => setTimeout(() => {
  document.querySelector('ol').innerHTML += '<li>one more</li>' }, 50)
</script>"""


@pytest.fixture
def page(browser, tmp_path):
    path = tmp_path / "a page & more.html"
    path.write_text(PAGE)
    browser.open(path)
    return browser


def test_clicks_and_typing_reach_the_page_and_its_visible_text_is_read(page, tmp_path):
    assert "never seen" not in page.text()
    page.click("#more")
    page.wait_for_text("one more")
    page.click_text("More")
    page.wait("document.querySelectorAll('li').length === 2")
    assert page.texts("li") == ["one more", "one more"]
    page.fill("#filter", "new <b>")
    assert page.run("document.querySelector('#filter').value") == "new <b>"
    page.fill("#filter", "")
    assert page.run("document.querySelector('#filter').value") == ""
    assert page.screenshot(tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")


def test_what_does_not_come_says_what_is_there_instead(page):
    with pytest.raises(BrowserError, match=r"(?s)not within 0\.2 s.*More"):
        page.wait_for_text("never seen", 0.2)
    with pytest.raises(BrowserError, match="x is not defined"):
        page.run("x")


def test_requests_to_other_machines_are_noted_and_fail(browser, tmp_path):
    path = tmp_path / "page.html"
    path.write_text(
        "<p>text</p><img src='https://example.com/a.png'><script>throw new Error('mine')</script>"
    )
    browser.open(path)
    browser.wait("document.images[0].complete")
    assert browser.run("document.images[0].naturalWidth") == 0
    assert any("example.com" in url for url in browser.requests)
    assert any("mine" in error for error in browser.errors)
    browser.open(path.with_name("page.html"))
    assert len([url for url in browser.requests if "example.com" in url]) == 1


def test_without_a_browser_the_error_says_how_to_get_one(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CADRE_BROWSER", raising=False)
    with pytest.raises(FileNotFoundError, match="apt install chromium"), browsers.start_browser():
        pass
