#!/usr/bin/env python3
"""Checks the layers of src/: who may include whom, which library stays where, how long a file is.

    tools/check_layers.py [ROOT]        ROOT holds src/ (default: the repository of this script)

A room is a folder of src/. A file includes its own room and rooms of strictly lower rank; rooms of
one rank are strangers. Families of models (src/models/FAMILY/) are known inside of models and its
tests alone: no other file includes a header of theirs or names a type of theirs. Flags of a model
are what a command line gives, and models make a value of them: no other room asks a model for its
flags, nor knows their types unless it fills them in. Every violation is printed as
file:line: reason; the exit status is 1 if there is one.
"""

import re
import sys
from pathlib import Path

RANK = {
    "base": 0,
    "device": 1,
    "jinja": 1,
    "tensor": 2,
    "tokenizers": 2,
    "kernels": 3,
    "data": 3,
    "autograd": 4,
    "comm": 4,
    "ops": 5,
    "parallel": 6,
    "nn": 7,
    "optim": 7,
    "checkpoint": 7,
    "models": 8,
    "plan": 9,
    "inference": 10,
    "report": 10,
    "tasks": 11,
    "settings": 11,
    "corpus": 12,
    "resume": 12,
    "training": 13,
    "server": 14,
    "post_training": 14,
    "selftest": 15,
    "rl": 15,
    "bench": 16,
    "cli": 17,
}
PROGRAM = "src/main.cpp"  # the one file outside the rooms; it only includes cli

# (include as written, who may write it: a pattern of paths below src/, that folder's name in messages)
VENDORS = [
    (r"nccl", r"comm/gpu/nccl/", "comm/gpu/nccl"),
    (
        r"cu(da|blas|dnn|rand|solver|sparse|fft|tlass)|cub/|cute/|thrust/|nvtx|nvml|nvToolsExt",
        r"(.*/)?cuda/|comm/gpu/nccl/",
        "a cuda/ folder or comm/gpu/nccl",
    ),
    (r"mpi(\.h|/|-ext)", r"comm/mpi/", "comm/mpi"),
    (r"(oneapi/)?dnnl", r"kernels/cpu/", "kernels/cpu"),
    (r"hwy/", r"kernels/cpu/", "kernels/cpu"),
    (r"nlohmann/", r"base/json\.cpp$", "base/json.cpp"),
    (r"spdlog/", r"base/log\.cpp$", "base/log.cpp"),
    (r"pcre2", r"(tokenizers|data)/", "tokenizers or data"),
    (
        r"simdjson",
        r"(base/utf8\.cpp$|(tokenizers|data|report)/)",
        "base/utf8.cpp, tokenizers, data or report",
    ),
    (r"unicode/", r"(tokenizers|data|jinja)/", "tokenizers, data or jinja"),
    (r"sentencepiece", r"tokenizers/", "tokenizers"),
    (r"yaml-cpp", r"(settings|cli)/", "settings or cli"),
    (r"httplib", r"server/http/", "server/http"),
    (r"(zlib|zstd)\.h", r"data/", "data"),
    (r"(gtest|gmock|benchmark)/", r"(?!)", "tests/, never src/"),
]

# Files that may depend on the families of models: paths from the root.
FAMILIARS = re.compile(r"src/models/|tests/(unit|dist|golden)/models/|tests/tiny_gpt\.h$")
ADAPTERS = "adapters"  # a folder of models that is no family
FAMILY_HEADER = re.compile(rf"models/(?!{ADAPTERS}/)[^/]+/")
FAMILY_TYPE = re.compile(r"^(?:struct|class|enum class|using) (\w+)", re.MULTILINE)

# Rooms that fill in a model's flags; the models room reads them.
FLAG_ROOMS = re.compile(r"src/(models|settings|training|selftest|bench)/|tests/")
FLAG_HEADER = re.compile(r"models/(model|moe)_flags\.h$")
FLAG_TYPE = re.compile(r"\b(ModelFlags|MoeFlags)\b")
FLAGS_OF_MODEL = re.compile(r"->\s*flags\(\)")

MAX_LINES = 600
LONG_FILES = {
    # "src/room/file.cpp": "the reason why it cannot be cut",
}

SOURCE_SUFFIXES = {".h", ".hpp", ".cpp", ".cc", ".c", ".cu", ".cuh", ".inl", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include\b[ \t]*(?:"([^"\n]*)"|<([^>\n]*)>|(.*))', re.MULTILINE)
LITERAL_OR_COMMENT = re.compile(
    r'"(?:\\.|[^"\\\n])*"|\'(?:\\[^\n\']+|[^\'\\\n])\'|//[^\n]*|/\*.*?\*/', re.DOTALL
)


def without_comments(text):
    """The text with every comment blanked; lines keep their numbers."""

    def blank(match):
        piece = match.group()
        return re.sub(r"[^\n]", " ", piece) if piece.startswith("/") else piece

    return LITERAL_OR_COMMENT.sub(blank, text)


class Checker:
    def __init__(self, root):
        self.root = root
        self.src = root / "src"
        self.problems = []
        self.includes = {}  # file below src/ -> [(line, file below src/ that it includes)]

    def complain(self, path, line, reason):
        self.problems.append((str(path), line, reason))

    def run(self):
        files = sorted(
            p for p in self.src.rglob("*") if p.suffix in SOURCE_SUFFIXES and p.is_file()
        )
        for path in files:
            self.check_file(
                path.relative_to(self.src).as_posix(),
                path.read_text(encoding="utf-8", errors="replace"),
            )
        self.check_cycles()
        self.check_models()
        self.check_lengths()
        self.check_links()
        return files

    def check_file(self, name, text):
        room = name.split("/")[0] if "/" in name else None
        if room is None and f"src/{name}" != PROGRAM:
            self.complain(f"src/{name}", 1, "stands in no room; only main.cpp does")
        elif room is not None and room not in RANK:
            self.complain(
                f"src/{name}", 1, f"room '{room}' is not in the rank table of tools/check_layers.py"
            )
        edges = self.includes.setdefault(name, [])
        text = without_comments(text)
        for match in INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            quoted, angled, computed = match.groups()
            if quoted is None and angled is None:
                self.complain(
                    f"src/{name}", line, f"computed include '{computed.strip()}' cannot be checked"
                )
            else:
                self.check_include(name, room, line, quoted, angled, edges)

    def check_include(self, name, room, line, quoted, angled, edges):
        where, target = f"src/{name}", quoted if quoted is not None else angled
        for pattern, allowed, home in VENDORS:
            if re.match(pattern, target):
                if not re.match(allowed, name):
                    self.complain(where, line, f"'{target}' stays in {home}")
                return
        target_room = target.split("/")[0]
        if quoted is None:
            if "/" in target and target_room in RANK and (self.src / target).is_file():
                self.complain(where, line, f'write "{target}" with quotes; <> is for libraries')
            return
        if ".." in target.split("/") or target.startswith(("/", "./")) or "/" not in target:
            self.complain(where, line, f'"{target}" must be written from src/: "room/file.h"')
            return
        if not (self.src / target).is_file():
            self.complain(where, line, f'"{target}" names no file of src/')
            return
        edges.append((line, target))
        if target_room == room or target_room not in RANK or room not in {None, *RANK}:
            return
        if room is None:
            if target_room != "cli":
                self.complain(where, line, f'"{target}": the program includes cli only')
            return
        mine, theirs = RANK[room], RANK[target_room]
        if theirs > mine:
            self.complain(
                where, line, f'"{target}" is upward: {room} has rank {mine}, {target_room} {theirs}'
            )
        elif theirs == mine:
            self.complain(
                where, line, f'"{target}": {room} and {target_room} are strangers of rank {mine}'
            )

    def check_cycles(self):
        """Every include that closes a cycle, found by one depth-first search."""
        done, path = set(), []

        def walk(start):
            stack = [(start, iter(self.includes.get(start, ())))]
            path.append(start)
            while stack:
                name, edges = stack[-1]
                for line, target in edges:
                    if target in path:
                        circle = path[path.index(target) :] + [target]
                        self.complain(f"src/{name}", line, "include cycle: " + " -> ".join(circle))
                    elif target not in done:
                        path.append(target)
                        stack.append((target, iter(self.includes.get(target, ()))))
                        break
                else:
                    done.add(name)
                    path.pop()
                    stack.pop()

        for name in sorted(self.includes):
            if name not in done:
                walk(name)

    def check_models(self):
        types = set()
        for header in sorted((self.src / "models").glob("*/*.h")):
            if header.parent.name == ADAPTERS:
                continue
            types.update(FAMILY_TYPE.findall(header.read_text(encoding="utf-8")))
        names = re.compile(r"\b(" + "|".join(sorted(types) or [r"(?!)"]) + r")\b")
        for folder in ("src", "tests"):
            for path in sorted((self.root / folder).rglob("*")):
                name = path.relative_to(self.root).as_posix()
                if path.suffix not in SOURCE_SUFFIXES or FAMILIARS.match(name):
                    continue
                text = without_comments(path.read_text(encoding="utf-8", errors="replace"))
                self.check_families(name, text, names)
                self.check_flags(name, text)

    def complain_of(self, name, text, match, reason):
        self.complain(name, text.count("\n", 0, match.start()) + 1, reason)

    def check_families(self, name, text, types):
        for match in INCLUDE.finditer(text):
            if match[1] and FAMILY_HEADER.match(match[1]):
                self.complain_of(name, text, match, f'"{match[1]}" stays in models and its tests')
        for match in types.finditer(text):
            self.complain_of(name, text, match, f"{match[1]} is a type of a family of models")

    def check_flags(self, name, text):
        instead = "a model is known by facts() and describe()"
        for match in FLAGS_OF_MODEL.finditer(text):
            self.complain_of(name, text, match, f"flags() of a model: {instead}")
        if FLAG_ROOMS.match(name):
            return
        for match in INCLUDE.finditer(text):
            if match[1] and FLAG_HEADER.match(match[1]):
                self.complain_of(name, text, match, f'"{match[1]}" here: {instead}')
        for match in FLAG_TYPE.finditer(text):
            self.complain_of(name, text, match, f"{match[1]} here: {instead}")

    def check_lengths(self):
        for folder in ("src", "tests", "tools", "bench"):
            for path in sorted((self.root / folder).rglob("*")):
                if not path.is_file() or path.suffix not in SOURCE_SUFFIXES | {".py"}:
                    continue
                name = path.relative_to(self.root).as_posix()
                lines = path.read_bytes().count(b"\n")
                if lines > MAX_LINES and not LONG_FILES.get(name):
                    self.complain(
                        name,
                        MAX_LINES + 1,
                        f"{lines} lines, the limit is {MAX_LINES}; "
                        "cut it, or list it with a reason in tools/check_layers.py",
                    )
                elif lines <= MAX_LINES and name in LONG_FILES:
                    self.complain(
                        name,
                        1,
                        "listed as a long file in tools/check_layers.py and is " "none; unlist it",
                    )

    def check_links(self):
        """Checks that libraries link by the same ranks as files include."""
        cmake = self.src / "CMakeLists.txt"
        if not cmake.is_file():
            return
        text = re.sub(r"#[^\n]*", "", cmake.read_text(encoding="utf-8"))
        for match in re.finditer(r"megatron_room\(([^)]*)\)", text):
            line = text.count("\n", 0, match.start()) + 1
            words = match.group(1).split()
            room = words[0]
            if room not in RANK:
                self.complain("src/CMakeLists.txt", line, f"room '{room}' is not in the rank table")
                continue
            below = words[words.index("LOWER") + 1 :] if "LOWER" in words else []
            for lower in below[: below.index("LIBRARIES")] if "LIBRARIES" in below else below:
                if RANK.get(lower, 99) >= RANK[room]:
                    self.complain(
                        "src/CMakeLists.txt",
                        line,
                        f"{room} (rank {RANK[room]}) may not "
                        f"link {lower} (rank {RANK.get(lower, 'none')})",
                    )


def main(arguments):
    if len(arguments) > 1 or any(a.startswith("-") for a in arguments):
        print(__doc__.strip())
        return 0 if arguments and arguments[0] in ("-h", "--help") else 2
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    if not (root / "src").is_dir():
        print(f"check_layers: {root} has no src/ folder")
        return 2
    checker = Checker(root)
    files = checker.run()
    for path, line, reason in sorted(checker.problems):
        print(f"{path}:{line}: {reason}")
    rooms = {p.relative_to(checker.src).parts[0] for p in files if p.parent != checker.src}
    edges = sum(len(e) for e in checker.includes.values())
    print(
        f"check_layers: {len(files)} files in {len(rooms)} rooms, {edges} includes, "
        f"{len(checker.problems)} problems"
    )
    return 1 if checker.problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
