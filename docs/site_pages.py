"""What the site has beside docs/: the README as its first page, the project's own pages, examples and benchmarks.

Links in these pages are as they are in the repository, where they can be followed too. On the site docs/ is the root,
so every link is written anew: from the file it stands in to the file it means, both where the site has them.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
BESIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "CITATION.cff",
    "LICENSE",
    "examples/*.*",
    "benchmarks/*.*",
)

_FENCED = re.compile(r"^(```.*?^```)", flags=re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for pattern in BESIDE:
        for path in sorted(ROOT.glob(pattern)):
            name = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = page.file.src_uri
    repository = source if source in _beside(files) else f"docs/{source}"
    parts = _FENCED.split(markdown)
    return "".join(part if part.startswith("```") else _relinked(part, repository, source) for part in parts)


def _beside(files: Files) -> set[str]:
    return {file.src_uri for file in files if file.generated_by}


def _relinked(text: str, repository: str, site: str) -> str:
    """``repository`` and ``site``: where the page is in each."""

    def relinked(match: re.Match[str]) -> str:
        meant = posixpath.normpath(posixpath.join(posixpath.dirname(repository), match[1]))
        target = posixpath.relpath(meant.removeprefix("docs/"), posixpath.dirname(site) or ".")
        return f"]({target}{match[2] or ''})"

    return _LINK.sub(relinked, text)
