"""The broadcast editor's bundle in Chromium, on a page without a daemon: the HTML of the email after pasting from other programs.

Needs Chromium and the built bundle, as test_broadcast_editor does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, expect

from tests.end_to_end.chromium import MARKS
from tests.end_to_end.test_broadcast_editor import PASTED

STATIC = Path(__file__).parents[2] / "mailsvc/dashboard/static"
PACKAGES = STATIC / "packages"
DROPPED = """(place, html) => {
  const { left, top } = place.querySelector("p").getBoundingClientRect(), dataTransfer = new DataTransfer();
  dataTransfer.setData("text/html", html);
  place.dispatchEvent(new DragEvent("drop", { dataTransfer, clientX: left + 5, clientY: top + 5, bubbles: true, cancelable: true }));
}"""
MOUNT = """async () => {
  const say = (text) => { window.said = text; };
  const given = { content: "", variables: [{ name: "first_name", fallback: "" }], changed() {}, upload() {}, say };
  window.editor = await MailEditor.mount(document.querySelector("main"), given);
}"""

pytestmark = MARKS


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    page, wrong = browser.new_page(), list[str]()
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.set_content('<!DOCTYPE html><html lang="en"><title>Editor</title><main></main>')
    for style in (PACKAGES / "editor.min.css", STATIC / "broadcast-editor.css"):
        page.add_style_tag(path=style)
    page.add_script_tag(path=PACKAGES / "editor.min.js")
    page.evaluate(MOUNT)
    yield page
    page.close()
    assert not wrong


def paste(page: Page, html: str) -> str:
    """The content of the email, without styles."""
    text = page.get_by_role("textbox", name="Content of the email")
    text.click()
    text.evaluate(PASTED, [html, ""])
    return re.sub(' (style|data-id)="[^"]*"', "", email(page))


def email(page: Page) -> str:
    html: str = page.evaluate("async () => (await editor.read()).html")
    content = html.partition('padding-left:0px">')[2].removesuffix("</td></tr></tbody></table></td></tr></tbody></table></body></html>")
    assert content
    return re.sub(r"\s*\n\s*", "", content)


def item(level: int, mark: str, text: str, of: str = "l0", more: str = "") -> str:
    """A paragraph as Word writes an item of a list."""
    ignored = f"<span style='font-family:Symbol'><span style='mso-list:Ignore'>{mark}<span>&nbsp;&nbsp; </span></span></span>"
    style = f"text-indent:-18.0pt;mso-list:{of} level{level} lfo1"
    return f"<p class=MsoListParagraph style='{style}'{more}><![if !supportLists]>{ignored}<![endif]>{text}<o:p></o:p></p>\n"


def test_lists_from_word_become_lists_nested_by_level(page: Page) -> None:
    bullets = item(1, "·", "A <b>bold</b> one") + item(2, "o", "Within") + item(3, "§", "Deep") + item(1, "·", "Another")
    numbers = item(1, "3.", "Three", "l1") + item(2, "a)", "Letter", "l1") + item(1, "4.", "Four", "l1")
    assert paste(page, f"<p class=MsoNormal>Before</p>{bullets}{numbers}<p class=MsoNormal>Behind</p>") == (
        "<p>Before</p>"
        "<ul><li><p>A <strong>bold</strong> one</p><ul><li><p>Within</p><ul><li><p>Deep</p></li></ul></li></ul></li>"
        "<li><p>Another</p></li></ul>"
        '<ol start="3"><li><p>Three</p><ol start="1"><li><p>Letter</p></li></ol></li><li><p>Four</p></li></ol>'
        "<p>Behind</p>"
    )


def test_what_only_looks_like_a_list_from_word_stays_text(page: Page) -> None:
    between = "<p class=MsoNormal style='mso-list:none'>Between</p>"
    html = item(1, "Article 1", "Scope") + item(2, "1.", "First") + between + item(1, "2.3", "Third") + item(1, "", "A picture", "l9")
    assert paste(page, html) == (
        '<p>Article 1   Scope</p><ol start="1"><li><p>First</p></li></ol><p>Between</p><ol start="3"><li><p>Third</p></li></ol>'
        "<ul><li><p>A picture</p></li></ul>"
    ).replace("   ", "\N{NO-BREAK SPACE}\N{NO-BREAK SPACE} ")


@pytest.mark.parametrize(
    ("table", "cells"),
    [
        ("<table><tr><td style='width:9pt;padding:0in 5.4pt 0in 5.4pt;border:solid 1pt'>A</td></tr></table>", ["0in 5.4pt"]),
        ("<table><tr><td style='padding:5pt 5pt 5pt 5pt'>A</td><td style='padding-left:3px'>B</td></tr></table>", ["5pt", None]),
        ("<table cellpadding=7><tr><td>A</td><td style='padding:0'>B</td></tr></table>", ["7px", "0px"]),
        ("<meta name=ProgId content=Excel.Sheet><table><tr><td class=xl65>A</td></tr></table>", ["4px 8px"]),
        ("<google-sheets-html-origin><table><tr><td style='padding:2px 3px'>A</td></tr></table></google-sheets-html-origin>", ["4px 8px"]),
        ("<table cellpadding=0><tr><td><table><tr><td>A newsletter</td></tr></table></td></tr></table>", [None, None]),
    ],
)
def test_cells_keep_their_padding_and_get_none(page: Page, table: str, cells: list[str | None]) -> None:
    paste(page, table)
    found = [re.search('padding:(?!0;|0$)([^;"]*)', style) for style in re.findall('<td [^>]*style="([^"]*)"', email(page))]
    assert [match and match[1] for match in found] == cells


def test_cells_over_several_columns_and_rows_stay_so(page: Page) -> None:
    html = "<table><tr><th colspan=2>Wide</th></tr><tr><td rowspan=2>High</td><td>A</td></tr><tr><td>B</td></tr></table>"
    found = re.sub('<p>|</p>|</?tbody>| (border|cellPadding|cellSpacing|role)="[^"]*"', "", paste(page, html))
    assert found == '<table><tr><th colSpan="2">Wide</th></tr><tr><td rowSpan="2">High</td><td>A</td></tr><tr><td>B</td></tr></table>'


def test_text_from_right_to_left_stays_so_and_is_indented_on_the_right(page: Page) -> None:
    html = f"<p dir=RTL>שלום</p>{item(1, '1.', 'ראשון', more=' dir=RTL')}<div dir=rtl><h2>כותרת</h2><p dir=ltr>Left</p></div><p>End</p>"
    assert paste(page, html).replace("<div>", "").replace("</div>", "") == (
        '<p dir="rtl">שלום</p><ol start="1" dir="rtl"><li dir="rtl"><p dir="rtl">ראשון</p></li></ol>'
        '<h2 dir="rtl">כותרת</h2><p dir="ltr">Left</p><p>End</p>'
    )
    styles = re.findall('<(?:ol|li)[^>]* style="([^"]*)"', email(page))
    assert len(styles) == 2 and all("right:1" in style and "left" not in style for style in styles)
    text = page.get_by_role("textbox", name="Content of the email")
    expect(text.locator("ol")).to_have_css("padding-left", "0px")
    expect(text.locator("li")).to_have_css("margin-left", "0px")
    text.evaluate(PASTED, [text.inner_html(), ""])
    expect(text.locator("p[dir=rtl]").first).to_be_visible()


def test_dropped_text_is_cleaned_as_pasted_text_is(page: Page) -> None:
    lists = item(1, "·", "Point")
    html = f"{lists}<p>A <a href='javascript:alert(1)'>link</a> <b>bold</b><img src='file:///C:/chart.png'></p><script>alert(1)</script>"
    text = page.get_by_role("textbox", name="Content of the email")
    text.click()
    text.evaluate(DROPPED, html)
    expect(text.locator("li")).to_have_text("Point")
    assert "<p>A link <strong>bold</strong></p>" in re.sub(' style="[^"]*"', "", email(page))
    expect(text.locator("a, img[src]")).to_have_count(0)
    assert page.evaluate("said") == "Images that aren’t on a website were left out. Add them with “Image”."


def test_the_buttons_are_called_as_they_look(page: Page) -> None:
    page.evaluate(AXE_SCRIPT)
    rule = "label-content-name-mismatch"
    options = {"runOnly": [rule], "rules": {rule: {"enabled": True}}}
    found = page.evaluate(
        "async (options) => (await axe.run('.toolbar', options)).violations.map((one) => one.nodes.map((n) => n.html))", options
    )
    assert found == []
