"""Settings of Sphinx for the documentation site. etc/site/build.py runs it."""

import re
from pathlib import Path

_HERE = Path(__file__).parent
_FOUND = re.search(r'__version__ = "(.+)"', (_HERE.parents[1] / "mailsvc/__init__.py").read_text("utf-8"))

project = "mailsvc"
release = version = _FOUND[1] if _FOUND else ""
extensions = ["myst_parser"]
myst_enable_extensions = ["tasklist"]
myst_heading_anchors = 4
highlight_language = "text"
pygments_style, pygments_dark_style = "a11y-high-contrast-light", "a11y-high-contrast-dark"

html_theme = "furo"
html_title = f"mailsvc {release}"
html_static_path = [str(_HERE / "static")]
html_favicon = str(_HERE.parents[1] / "mailsvc/dashboard/static/mark.svg")
html_css_files = ["site.css"]
html_js_files = [("try.js", {"defer": "defer"})]
html_show_sourcelink = html_copy_source = html_show_copyright = html_show_sphinx = html_use_index = False
