"""
Configure Sphinx for the documentation's site.

Runs in ``make site``. Invariant: a built page loads nothing from another host, so a network is not needed.
"""

from __future__ import annotations

from importlib.metadata import metadata
from importlib.metadata import version as installed
from pathlib import Path

project = "pgonce"
author = "the authors of pgonce"
version = release = installed("pgonce")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "site_pages"]
nitpicky = True
# Types of other packages, whose documentation is on other hosts; and what only pgonce itself makes.
nitpick_ignore_regex = [
    ("py:.*", r"(?!pgonce\.).*"),
    (
        "py:class",
        r"pgonce\.offsets_store\.verdict\..*|pgonce\.sink\.foreach_batch\.batch_transaction\.Steps|pgonce\.sink\.writing\.rooms\..*",
    ),
]

# SQL whose parameters have names ($writer) is not quite SQL.
suppress_warnings = ["misc.highlighting_failure"]
# As GitHub does, so that a link to a heading works in both.
myst_heading_anchors = 4

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}

_urls = dict(url.split(", ", 1) for url in metadata("pgonce").get_all("Project-URL", []))

html_theme = "furo"
html_theme_options = {
    "footer_icons": [
        {"name": name, "url": _urls[name], "html": name, "class": ""}
        for name in ("Repository", "Issues")
        if name in _urls
    ]
}
html_title = f"pgonce {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_favicon = "static/icon.svg"
html_copy_source = False
# Found pages are shown by their titles alone: their text would be fetched, which a browser refuses for files.
html_show_search_summary = False
html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
