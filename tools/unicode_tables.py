#!/usr/bin/env python3
"""Writes src/tokenizers/unicode/unicode_tables.cpp: classes of Unicode 16, lower case of Unicode 17.

    pip install unicodedata2==16.0.0 regex==2025.11.3
    python3 tools/unicode_tables.py > src/tokenizers/unicode/unicode_tables.cpp

General categories and White_Space come from unicodedata2. Alphabetic beyond letters, marks and
letter numbers (circled letters), and the lower case of capitals that Python's own tables do not
know yet, come from regex, whose Unicode must be 17: later versions know 18.
"""

import sys

if {"-h", "--help"} & set(sys.argv[1:]):
    print(__doc__.strip())
    sys.exit(0)

import unicodedata

import regex
import unicodedata2

VERSION = "16.0.0"
CATEGORIES = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
              "Cc Cf Cs Co").split()
LIMIT = 0x110000
WORD, SPACE = 32, 64
AGE_17, AGE_18 = "\ua7ce", "\ua7dd"  # capitals that came with these versions
SPACES = {0x85, *range(0x9, 0xe)}  # White_Space besides Z


def flags(c):
    """The byte of one character: its category, and bits for \\w and White_Space."""
    category = unicodedata2.category(chr(c))
    byte = CATEGORIES.index(category)
    word = category[0] in "LM" or category in ("Nl", "Nd", "Pc") or c in (0x200c, 0x200d)
    if category == "So":
        word = bool(regex.match(r"\p{Alphabetic}", chr(c)))
    if category[0] == "Z" or c in SPACES:
        byte |= SPACE
    return byte | (WORD if word else 0)


def lower_case():
    """(upper, lower) of all characters whose simple lower case differs."""
    pairs = []
    small = "".join(regex.findall(r"\p{Ll}", "".join(map(chr, range(LIMIT)))))
    for c in range(LIMIT):
        upper = chr(c)
        if unicodedata.category(upper) != "Cn":
            lower = upper.lower()
            if lower != upper:
                pairs.append((c, ord(lower[0])))
        elif regex.match(r"\p{Lu}", upper):
            mates = regex.findall("(?i)" + upper, small)
            assert len(mates) == 1, (hex(c), mates)
            pairs.append((c, ord(mates[0])))
    return pairs


def lower_runs(pairs):
    """Runs (first, last, step, distance) of characters with one distance."""
    runs = []
    for upper, lower in pairs:
        distance = lower - upper
        if runs and runs[-1][3] == distance:
            first, last, step, _ = runs[-1]
            gap = upper - last
            if gap <= 2 and (first == last or gap == step):
                runs[-1] = (first, upper, gap, distance)
                continue
        runs.append((upper, upper, 1, distance))
    return runs


def print_rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line)
            line = "   "
        line += f" {item},"
    print(line)


def main():
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}; {VERSION} is needed")
    if not regex.match(r"\p{Lu}", AGE_17) or regex.match(r"\p{Lu}", AGE_18):
        sys.exit(f"regex {regex.__version__} does not have Unicode 17; install 2025.11.3")
    runs = []
    for c in range(LIMIT):
        byte = flags(c)
        if not runs or runs[-1][1] != byte:
            runs.append((c, byte))
    print("// Written by tools/unicode_tables.py; do not edit.")
    print('#include "tokenizers/unicode/unicode_tables.h"\n')
    print("// clang-format off")
    print("namespace megatron::tokenizers {\n")
    print("const uint32_t kClassRuns[] = {")
    print_rows([f"0x{c << 8 | byte:x}" for c, byte in runs])
    print("};")
    print(f"const size_t kClassRunCount = {len(runs)};\n")
    pairs = lower_runs(lower_case())
    print("const LowerCaseRun kLowerCaseRuns[] = {")
    print_rows([f"{{0x{a:x}, 0x{b:x}, {step}, {distance}}}" for a, b, step, distance in pairs])
    print("};")
    print(f"const size_t kLowerCaseRunCount = {len(pairs)};\n")
    print("}  // namespace megatron::tokenizers")


if __name__ == "__main__":
    main()
