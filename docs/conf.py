"""Sphinx builds the handbook: ``sphinx-build -W docs <directory>``."""

from importlib.metadata import version as installed

project = "cellcohort"
release = version = installed("cellcohort")
extensions = ["myst_parser", "numpydoc", "sphinx.ext.autodoc", "sphinx.ext.autosummary"]
html_theme = "furo"
html_show_copyright = False
html_title = f"cellcohort {release}"
exclude_patterns = ["examples", "tutorials"]
myst_heading_anchors = 3
autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False
suppress_warnings = ["autosummary.import_cycle"]
nitpicky = False
