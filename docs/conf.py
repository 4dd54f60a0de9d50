"""Sphinx builds the handbook: ``sphinx-build -W docs <directory>``."""

import re
from importlib.metadata import version as installed

from docutils import nodes
from sphinx.application import Sphinx

project = "cellcohort"
release = version = installed("cellcohort")
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
html_theme = "furo"
html_static_path = ["_static"]
templates_path = ["_templates"]
html_css_files = ["handbook.css"]
html_show_copyright = False
html_title = f"cellcohort {release}"
exclude_patterns = ["examples", "tutorials"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
suppress_warnings = ["autosummary.import_cycle"]
nitpicky = False
LONG = 20  # characters of code in a table from which on it may be broken into lines


def break_long_code(_: Sphinx, document: nodes.document) -> None:
    """Let long code in tables, such as the names of tests, be broken after a sign; what is copied stays as it is."""
    for table in document.findall(nodes.table):
        for code in [each for each in table.findall(nodes.literal) if len(each.astext()) >= LONG]:
            first, *rest = re.findall(r"[^/_:.=,]*[/_:.=,]*", code.astext())
            code.children = [nodes.Text(first)]
            for part in rest:
                code += [nodes.raw("", "<wbr>", format="html"), nodes.Text(part)]


def setup(app: Sphinx) -> None:
    """Register the above with Sphinx."""
    app.connect("doctree-read", break_long_code)
