"""The examples of docs/adding.md, by the comment above each fenced block:
  <!-- new: PATH -->                  the block is this file
  <!-- in: PATH, after: TEXT -->      its lines go behind the one line that holds TEXT (before: in front of it;
                                      instead of: in its place)
  <!-- from: PATH -->                 the file holds the block already, but for white space

adding_examples.py FOLDER PATH... writes new files, as the page has them, below FOLDER.
"""

import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = re.compile(
    r"^ *<!-- (?P<kind>new|in|from): (?P<path>[^\s,]+)(?:, (?P<how>after|before|instead of): (?P<anchor>.*?))? -->\n"
    r"(?P<block>(?P<indent> *)```cpp\n.*?\n(?P=indent)```\n)",
    re.DOTALL | re.MULTILINE,
)
FENCE = re.compile(r"^ *```cpp$", re.MULTILINE)


class Example:
    def __init__(self, match):
        self.kind, self.path, self.how, self.anchor = match.group("kind", "path", "how", "anchor")
        lines = match["block"].splitlines(keepends=True)[1:-1]
        self.text = textwrap.dedent("".join(lines))

    def apply(self, tree):
        """Changes the tree. Throws ValueError with the part that does not fit the tree."""
        path = tree / self.path
        if self.kind == "new":
            if path.exists():
                raise ValueError(f"{self.path} is there already")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self.text)
            return
        if not path.is_file():
            raise ValueError(f"there is no {self.path}")
        text = path.read_text()
        if self.kind == "from":
            if "".join(self.text.split()) not in "".join(text.split()):
                raise ValueError(f"{self.path} does not hold:\n{self.text}")
            return
        lines = text.splitlines(keepends=True)
        places = [i for i, line in enumerate(lines) if self.anchor in line]
        if len(places) != 1:
            raise ValueError(f"{self.path} has {len(places)} lines with '{self.anchor}' instead of one")
        at = places[0]
        lines[at + (self.how == "after") : at + (self.how != "before")] = [self.text]
        path.write_text("".join(lines))


def examples(document=None):
    document = document if document is not None else (ROOT / "docs/adding.md").read_text()
    found = [Example(match) for match in EXAMPLE.finditer(document)]
    if len(found) != len(FENCE.findall(document)):
        raise ValueError("a block of C++ says neither new, in nor from")
    return found


if __name__ == "__main__":
    for wanted in sys.argv[2:]:
        (example,) = [e for e in examples() if e.kind == "new" and e.path == wanted]
        (Path(sys.argv[1]) / wanted).unlink(missing_ok=True)
        example.apply(Path(sys.argv[1]))
