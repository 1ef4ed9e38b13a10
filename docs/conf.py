"""Sphinx settings. The build needs no network."""

import cvs

project = "cvs"
author = "The cvs authors"
copyright = "The cvs authors"
version = release = cvs.__version__

extensions: list[str] = []
exclude_patterns = ["_build"]
smartquotes = False  # `--run_dir` must stay two hyphens
highlight_language = "text"

html_theme = "furo"
html_title = f"cvs {version}"
html_copy_source = False
html_show_sphinx = False
