"""
What the site adds to Sphinx: lists of pages with one line each, pictures as part of their page, and texts for programs.

Runs in ``make site``, as an extension of Sphinx. Invariant: a page's line is what the list that names it says, or else
the page's own first sentence, wherever it is shown.
"""

from __future__ import annotations

import fnmatch
import re
from html import escape
from importlib.metadata import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx import addnodes
from sphinx.directives.other import TocTree
from sphinx.transforms import SphinxTransform
from sphinx.util import docname_join
from sphinx.util.nodes import explicit_title_re, make_refnode
from sphinx.writers.text import TextTranslator

import pgonce

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

_SENTENCE = re.compile(r"(?:(?:Context|Decision|Status)\. )?(.+?)(?:\.(?=\s|$)|:?$)")
# Links between pages, and what only Sphinx understands.
_MARKDOWN_LINK = re.compile(r"(?<=\]\()([^):]+)\.md(?=[)#])")
_DIRECTIVE = re.compile(r"^```\{\w+\}.*?^```\n", re.MULTILINE | re.DOTALL)
_PLACE = re.compile(r'<span id="(\w+)">')
# What a program may leave out first: llms.txt has a word for it.
_SECTIONS = {"start": "Start", "how-to": "How-to", "reference": "Reference", "why": "Why", "optional": "Optional"}
_OPTIONAL = ("adr/", "benchmarks", "contributing", "crashes", "faults", "outcomes", "testbed")


# What people look for, where the section that answers does not have the word, or many others have it as well.
_LOOKED_FOR = {
    ("guarantees", "what-is-guaranteed"): ("exactly once", "exactly-once", "at least once", "duplicate", "duplicates"),
    ("start/for-a-platform-team", "the-package"): ("license", "licence", "licensing", "macos", "windows"),
    ("watching", "lag"): ("lag", "consumer lag"),
}


class PageList(nodes.General, nodes.Element):
    """Where the pages of a section are listed."""


class Pages(TocTree):
    """A hidden toctree, and in its place a list of its pages; ``name: line`` says what a page is about."""

    def run(self) -> list[nodes.Node]:
        """Make both."""
        self.options |= {"hidden": True, "glob": True}
        names = []
        for entry, _, line in (text.partition(": ") for text in self.content):
            titled = explicit_title_re.match(entry)
            name = docname_join(self.env.docname, titled[2] if titled else entry)
            _said(self.env)[name] = line
            # A folder without pages yet is not wrong.
            if "*" not in entry or fnmatch.filter(self.env.found_docs - {self.env.docname}, name):
                names.append(entry)
        self.content = StringList(names)
        found = super().run()
        (tree,) = (node for one in found for node in one.findall(addnodes.toctree))
        return [*found, PageList("", pages=tree["entries"])]


class NamedPlaces(SphinxTransform):
    """Lets the search and the index find what has a place of its own in a page, and what people look for."""

    # Before Sphinx collects what the index has.
    default_priority = 840

    def apply(self, **_: Any) -> None:
        """Name each such place: that of an error's code, and sections."""
        for raw in list(self.document.findall(nodes.raw)):
            if found := _PLACE.fullmatch(raw.astext()):
                entry = ("single", found[1], found[1], "main", None)
                raw.parent.insert(raw.parent.index(raw), addnodes.index(entries=[entry]))
        for section in list(self.document.findall(nodes.section)):
            for place in section["ids"]:
                words = _LOOKED_FOR.get((self.env.docname, place), ())
                section.insert(1, addnodes.index(entries=[("single", word, place, "main", None) for word in words]))


def _said(env: BuildEnvironment) -> dict[str, str]:
    """What lists say of their pages."""
    return env.__dict__.setdefault("said_of_pages", {})


def line_of(env: BuildEnvironment, name: str) -> str:
    """What a page is about."""
    if said := _said(env).get(name):
        return said
    for paragraph in env.get_doctree(name).findall(nodes.paragraph):
        if isinstance(paragraph.parent, nodes.section) and not isinstance(paragraph[0], nodes.image):
            return _SENTENCE.match(" ".join(paragraph.astext().split()))[1]
    return ""


def _fill_lists(app: Sphinx, doctree: nodes.document, name: str) -> None:
    for place in list(doctree.findall(PageList)):
        listed = nodes.bullet_list()
        for title, page in place["pages"]:
            address = app.builder.get_relative_uri(name, page)
            link = nodes.reference("", title or app.env.titles[page].astext(), internal=True, refuri=address)
            # Code stands at the odd places.
            parts = f": {line_of(app.env, page)}".rstrip(": ").split("`")
            shown = (nodes.literal("", part) if at % 2 else nodes.Text(part) for at, part in enumerate(parts))
            listed += nodes.list_item("", nodes.paragraph("", "", link, *shown))
        place.replace_self(listed)


def _draw_pictures(app: Sphinx, doctree: nodes.document, name: str) -> None:
    """Put the SVGs of docs/pictures into their pages, where they take the colours of the theme."""
    del name
    for image in list(doctree.findall(nodes.image)):
        if "pictures/" in image["uri"]:
            svg = (Path(app.srcdir) / image["uri"]).read_text()
            label = f'role="img" aria-label="{escape(image.get("alt", ""))}"'
            image.replace_self(nodes.raw("", svg.replace("<svg ", f"<svg {label} ", 1), format="html"))


def _write_texts(app: Sphinx, failed: Exception | None) -> None:
    """Write llms.txt, with a line for each page, and llms-full.txt, with all of them."""
    if failed or app.builder.name != "html":
        return
    shown = [name for name in _in_order(app.env) if "orphan" not in app.env.metadata[name]]
    sections: dict[str, list[str]] = {section: [] for section in ("", *_SECTIONS)}
    section = ""
    for name in shown:
        section = name.partition("/")[0] if name.endswith("/index") and name[:-6] in _SECTIONS else section
        line = f"- [{app.env.titles[name].astext()}]({app.builder.get_target_uri(name)}): {line_of(app.env, name)}"
        sections["optional" if name.startswith(_OPTIONAL) else section].append(line)
    lines = [line for section, of_it in sections.items() for line in [*_heading(section), *of_it]]
    head = f"# pgonce {app.config.release}\n\n> {metadata('pgonce')['Summary']}.\n"
    out = Path(app.outdir)
    (out / "llms.txt").write_text("\n".join([head, *lines, ""]))
    texts = (f"<!-- {app.builder.get_target_uri(name)} -->\n\n{_text_of(app, name).strip()}\n" for name in shown)
    (out / "llms-full.txt").write_text("\n".join([head, *texts]))


def _heading(section: str) -> list[str]:
    return ["", f"## {_SECTIONS[section]}", ""] if section else []


def _describe(app: Sphinx, name: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Tell search engines what a page is about."""
    del template
    if doctree is not None and (line := line_of(app.env, name)):
        context["metatags"] += f'<meta name="description" content="{escape(line)}">'


def _in_order(env: BuildEnvironment) -> list[str]:
    """All pages, those of a section after its own."""
    found: list[str] = []
    waiting = ["index"]
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting[:0] = env.toctree_includes.get(name, [])
    return found + sorted(env.found_docs - set(found))


def _text_of(app: Sphinx, name: str) -> str:
    """A page as Markdown; as plain text, if most of it is made from docstrings."""
    text = Path(app.env.doc2path(name)).read_text()
    if "```{eval-rst}" not in text:
        return _MARKDOWN_LINK.sub(r"\1.html", _DIRECTIVE.sub("", text))
    translator = TextTranslator(app.env.get_and_resolve_doctree(name, app.builder), app.builder)
    translator.document.walkabout(translator)
    return translator.body


def _link_types(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, shown: nodes.TextElement) -> Any:
    """Lead from a public name's own module to where it is described, and from a table of options to their page."""
    here, target = node["refdoc"], node["reftarget"]
    name = target.rpartition(".")[2]
    if target.startswith("pgonce.sink.options."):
        return make_refnode(app.builder, here, "options", "", shown)
    if target.startswith("pgonce.") and name in pgonce.__all__:
        return env.domains["py"].resolve_xref(env, here, app.builder, "obj", f"pgonce.{name}", node, shown)
    return None


def _name_modules() -> None:
    """Let each public name be known by where users import it."""
    for name in pgonce.__all__:
        getattr(pgonce, name).__module__ = "pgonce"


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx."""
    _name_modules()
    app.add_node(PageList)
    app.add_directive("pages", Pages)
    app.add_transform(NamedPlaces)
    app.connect("missing-reference", _link_types)
    app.connect("html-page-context", _describe)
    app.connect("doctree-resolved", _fill_lists)
    app.connect("doctree-resolved", _draw_pictures)
    app.connect("build-finished", _write_texts)
    return {"parallel_read_safe": False, "parallel_write_safe": True}
