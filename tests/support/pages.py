"""What tests read off the pages of the documentation: code blocks, links, shown outputs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page; `label` is that of the comment `<!-- label -->` in the line before it."""

    page: Path
    language: str
    text: str
    label: str = ""

    @property
    def place(self) -> str:
        """For the ids of tests: the page and what the block begins with."""
        return f"{self.page.stem}-{re.sub(r'[^a-zA-Z]+', '-', self.text)[:24]}"


def blocks(language: str | None = None, page: Path | None = None) -> list[Block]:
    """The blocks of one page or of all, in their order; `language` None takes every kind."""
    pattern = r"(?:^<!-- ([^>]*) -->\n)?^```(\w*)\n(.*?)^```$"
    return [
        Block(path, kind, text, label)
        for path in ([page] if page else PAGES)
        for label, kind, text in re.findall(pattern, path.read_text("utf-8"), re.MULTILINE | re.DOTALL)
        if language is None or kind == language
    ]


def output(name: str) -> str:
    """The one output that pages show under `<!-- output: NAME -->`."""
    (block,) = [b for b in blocks("") if re.split(r"[:,] ?", b.label)[:2] == ["output", name]]
    return block.text


def shape(text: str) -> list[str]:
    """The lines of an output without what differs from run to run: numbers, and blanks between columns."""
    masked = re.sub(r"\d[\d.,]*(e-?\d+)?%?( [kM]\b)?|(?<= )–(?= |$)", "#", text, flags=re.MULTILINE)
    masked = re.sub(r"(?<![\w])-(?=#)", "", masked)
    return [" ".join(line.split()) for line in masked.splitlines() if line.strip()]


def missing_from(shown: str, made: str) -> list[str]:
    """Lines of a shown output that a made one has not, in the order of the shown one."""
    rest, missing = iter(shape(made)), []
    for line in shape(shown):
        before = list(rest)
        if line in before:
            rest = iter(before[before.index(line) + 1 :])
        else:
            missing.append(line)
            rest = iter(before)
    return missing
