"""How the site is built: see `make docs`."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# the code cells call the `otimes` command of the environment that builds the site, in a terminal
# of a known width, and leave the machine's other core alone
os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
os.environ["COLUMNS"] = "96"
os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "otimes"
author = "The otimes contributors"
project_copyright = author
version = release = installed_version("otimes")

extensions = [
    "myst_nb",
    "sphinx.ext.apidoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "api/modules.rst"]

html_theme = "furo"
html_title = "otimes"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Pages show what the code does now: each is executed at each build, and an error ends the build.
# (A cache would know when a page changed, not when otimes did.)
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_merge_streams = True

# The reference is made from the package as it is. The scripts that trained the shipped models are
# described in the page on checkpoints.
apidoc_modules = [
    {
        "path": "../otimes",
        "destination": "api",
        "exclude_patterns": ["../otimes/models/train.py", "../otimes/models/measure.py"],
        "separate_modules": True,
        "module_first": True,
        "automodule_options": {"members", "show-inheritance", "undoc-members"},
    }
]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
# two packages may each have a Step or a Block; annotations name them without their package
suppress_warnings = ["ref.python"]
# a name that a package offers again is described once, where it is defined; see below
autodoc_default_options = {"ignore-module-all": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True


def _list_public_names(
    _app: Sphinx, what: str, _name: str, module: object, _options: object, lines: list[str]
) -> None:
    """End a package's text with links from its public names to where they are defined."""
    public = getattr(module, "__all__", ())
    if what != "module" or not public:
        return
    lines.extend(["", "Public names:", ""])
    for name in public:
        home = getattr(getattr(module, name), "__module__", None)
        lines.append(f"- :py:obj:`{name} <{home}.{name}>`" if home else f"- ``{name}``")
    lines.append("")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _list_public_names)
