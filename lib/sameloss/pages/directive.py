"""The Sphinx side: figures by the directive {result}, claims as targets, reading times, MathJax offline."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import matplotlib.font_manager  # noqa: F401  (builds its cache here, not with a message inside the first page)
from docutils import nodes
from myst_nb.core.variables import RetrievalError, format_plain_text
from myst_nb.ext.glue.directives import PasteFigureDirective
from myst_nb.ext.glue.utils import retrieve_glue_data
from sphinx.util import logging
from sphinx.util.fileutil import copy_asset

from sameloss.pages import repository
from sameloss.pages.check import WORDS_A_MINUTE
from sameloss.pages.claims import CLAIMS
from sameloss.pages.code_links import link_code, name_figures

PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
LEDGER_PAGE = "book/ledger"
# SVG output needs no fonts, which browsers do not load from a folder above a page on disk; one file holds all.
MATHJAX = "tex-svg-full.js"
logger = logging.getLogger(__name__)


class ResultDirective(PasteFigureDirective):
    """`{result} name`: the figure glued as `name`, which is also its cross-reference target.

    The option alt may hold generated numbers as {key} or {key:.2f}. What is missing (alt text in words, caption,
    stamp) is a warning, and so fails the build.
    """

    def run(self) -> list[nodes.Node]:
        name = self.arguments[0]
        self.options["name"] = name
        self.options["alt"] = self._fill(self.options.get("alt", ""))
        if len(re.findall(r"[^\W\d_]{2,}", self.options["alt"])) < 4:
            self._warn(f"figure {name!r} needs an alt text in words (:alt:)")
        shown_before = {image["uri"] for image in self.document.findall(nodes.image)}
        result = super().run()
        figure = result[0]
        if not isinstance(figure, nodes.figure):
            return result
        for image in figure.findall(nodes.image):
            image["classes"] = [*image.get("classes", []), "dark-light"]  # the picture has a dark mode of its own
            if image["uri"] in shown_before:
                self._warn(f"figure {name!r} is shown twice: tag its cell remove-output")
        if not any(isinstance(child, nodes.caption) for child in figure):
            self._warn(f"figure {name!r} has no caption")
        legend = next((child for child in figure if isinstance(child, nodes.legend)), None)
        if legend is None:
            figure += (legend := nodes.legend())
        legend += self._stamp(name)
        return result

    def _stamp(self, name: str) -> nodes.paragraph:
        """The provenance line, with the numbers of the figure to download (inside the page: no other file)."""
        line = nodes.paragraph("", self._text(f"{name}-stamp"), classes=["stamp"])
        href = "data:text/csv;base64," + self._text(f"{name}-csv")
        link = f' · <a href="{href}" download="{name}.csv">numbers of this figure (CSV)</a>'
        line += nodes.raw("", link, format="html")
        return line

    def _fill(self, text: str) -> str:
        return PLACEHOLDER.sub(lambda match: self._text(match[1], match[2] or "s"), text)

    def _text(self, key: str, spec: str = "s") -> str:
        try:
            return format_plain_text(retrieve_glue_data(self.document, key).data["text/plain"], spec)
        except (RetrievalError, KeyError, ValueError, TypeError) as error:
            self._warn(f"cannot show {key!r}: {error}")
            return ""

    def _warn(self, message: str) -> None:
        logger.warning(message, location=(self.state.document.settings.env.docname, self.lineno))


def claim_targets(app: Any, doctree: nodes.document) -> None:
    """Make {ref}`C2 <c2>` lead to the row of claim C2, whose id the ledger's table carries."""
    if app.env.docname == LEDGER_PAGE:
        labels = app.env.get_domain("std")
        for claim in CLAIMS.values():
            anchor = claim.id.lower()
            labels.anonlabels[anchor] = (LEDGER_PAGE, anchor)
            labels.labels[anchor] = (LEDGER_PAGE, anchor, claim.id)


def reading_time(app: Any, doctree: nodes.document) -> None:
    """A line below the title: how long the text takes, without code and tables."""
    title = next(iter(doctree.findall(nodes.title)), None)
    words = sum(len(paragraph.astext().split()) for paragraph in doctree.findall(nodes.paragraph))
    if title is not None and words >= 2 * WORDS_A_MINUTE:
        line = f"{round(words / WORDS_A_MINUTE)} minutes to read"
        title.parent.insert(title.parent.index(title) + 1, nodes.paragraph("", line, classes=["reading-time"]))


def mend_roles(app: Any, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None) -> None:
    """Take back the role that Sphinx gives to a list of citations: its entries have another than a list's."""
    if "body" in context:
        context["body"] = context["body"].replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )


def link_repository(
    app: Any, page: str, template: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    """Buttons to the source and to Binder, where the staged configuration names a public repository."""
    address = app.config.sameloss_repository
    if address and doctree is not None and "header_buttons" in context:
        notebook = context.get("page_source_suffix") == ".ipynb"
        context["header_buttons"].extend(repository.buttons(address, page, notebook))


def copy_mathjax(app: Any, failure: Exception | None) -> None:
    """Copy MathJax out of the package that ships it (module `sphinx-mathjax-offline`) beside the pages."""
    if failure is None and app.builder.format == "html":
        found = importlib.util.find_spec("sphinx-mathjax-offline")
        if found is None or found.origin is None:
            raise FileNotFoundError("the package sphinx-mathjax-offline, which brings MathJax, is not installed")
        copy_asset(str(Path(found.origin).parent / "static" / "mathjax" / MATHJAX), str(Path(app.outdir) / "_static"))


def setup(app: Any) -> dict[str, Any]:
    """Register with Sphinx (`extra_extensions: [sameloss.pages.directive]`)."""
    app.add_directive("result", ResultDirective)
    app.connect("doctree-read", claim_targets)
    app.connect("doctree-read", reading_time)
    app.connect("doctree-read", link_code)
    app.connect("html-page-context", mend_roles)
    app.connect("html-page-context", name_figures)
    app.connect("html-page-context", link_repository, priority=900)  # after the theme has made its list of buttons
    app.connect("build-finished", copy_mathjax)
    app.config.mathjax_path = MATHJAX
    app.add_config_value("sameloss_repository", "", "html")
    app.add_config_value("comments_config", {}, "html")  # Jupyter Book sets it even where nobody reads it
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
