"""MkDocs hooks: the sections of docs/index.md are the navigation, and files of the repository that pages link to become
part of the site.

Such a file lies at repository/PATH of the site; a Markdown file is a page there, a folder its README, or no link where
it has none. A link to what is not in the repository stays as it is, and mkdocs, which is strict, fails on it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
DOCS, SITE = "docs", "repository"
README = "README.md"
LINK = re.compile(r"\[(?P<text>[^\]]*)\]\((?P<target>(?![a-z]+:|#|/)[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")
CODE = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)


def navigation(index: str) -> list[str | dict[str, list[str]]]:
    """The pages that each section of the index links to, in its order; the index itself is the first."""
    sections: dict[str, list[str]] = {}
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        title, _, body = section.partition("\n")
        links = [link["target"] for link in LINK.finditer(body)]
        sections[title] = [link for link in dict.fromkeys(links) if link.endswith(".md") and not link.startswith("..")]
    return ["index.md", *({title: pages} for title, pages in sections.items())]


def outside(markdown: str, folder: str) -> dict[str, str]:
    """Targets in `markdown` of files that exist and are not below docs/ → their path in the repository."""
    prose = CODE.sub("", markdown)
    found = {
        link["target"]: posixpath.normpath(posixpath.join(folder, link["target"])) for link in LINK.finditer(prose)
    }
    return {target: path for target, path in found.items() if _exists(path) and not path.startswith(f"{DOCS}/")}


def rewritten(markdown: str, place: Callable[[str], str | None]) -> str:
    """`markdown` with each relative target outside of code put where `place` says; None: no link any more."""

    def moved(link: re.Match[str]) -> str:
        target = place(link["target"])
        return link["text"] if target is None else f"[{link['text']}]({target}{link['anchor'] or ''})"

    return "".join(part if CODE.fullmatch(part) else LINK.sub(moved, part) for part in CODE.split(markdown))


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Navigate by the index."""
    config.nav = navigation((ROOT / DOCS / "index.md").read_text(encoding="utf-8"))
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to, and what the pages among that link to."""
    waiting = [(file.content_string, _folder(file.src_uri)) for file in files.documentation_pages()]
    while waiting:
        for path in sorted(set(outside(*waiting.pop()).values())):
            source = _file(path)
            if (ROOT / source).is_dir():
                continue
            if files.get_file_from_path(f"{SITE}/{source}") is None:
                uri, there = f"{SITE}/{source}", str(ROOT / source)
                files.append(File.generated(config, uri, abs_src_path=there, inclusion=InclusionLevel.NOT_IN_NAV))
                if source.endswith(".md"):
                    waiting.append(((ROOT / source).read_text(encoding="utf-8"), posixpath.dirname(source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Lead links to where the site has the files."""
    uri = page.file.src_uri
    folder = _folder(uri)
    paths = outside(markdown, folder)

    def place(target: str) -> str | None:
        path = paths.get(target)
        if path is not None and (ROOT / _file(path)).is_dir():
            return None
        if path is not None:
            there = f"{SITE}/{_file(path)}"
        elif uri.startswith(f"{SITE}/"):  # a file of the repository that links into docs/
            there = posixpath.relpath(posixpath.normpath(posixpath.join(folder, target)), DOCS)
        else:
            return target
        return posixpath.relpath(there, posixpath.dirname(uri) or ".")

    return rewritten(markdown, place)


def _folder(uri: str) -> str:
    """Of the repository: where the page `uri` of the site is from."""
    path = uri.removeprefix(f"{SITE}/") if uri.startswith(f"{SITE}/") else f"{DOCS}/{uri}"
    return posixpath.dirname(path)


def _exists(path: str) -> bool:
    return not path.startswith("..") and (ROOT / path).exists()


def _file(path: str) -> str:
    """A folder stands for its README, where it has one."""
    readme = posixpath.join(path, README)
    return readme if (ROOT / readme).is_file() else path
