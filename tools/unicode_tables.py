#!/usr/bin/env python3
"""Writes src/tokenizers/unicode/unicode_tables.cpp: what Unicode 16 (lower case: 17) has beyond 14.

    pip install unicodedata2==16.0.0 regex==2025.11.3
    python3.11 tools/unicode_tables.py > src/tokenizers/unicode/unicode_tables.cpp

Python 3.11 has Unicode 14, as the oldest ICU that the program is built with; categories of 16 come
from unicodedata2. The lower case of capitals that Python does not know yet comes from regex, whose
Unicode must be 17: later versions know 18.
"""

import sys

if {"-h", "--help"} & set(sys.argv[1:]):
    print(__doc__.strip())
    sys.exit(0)

import unicodedata

import regex
import unicodedata2

OLD_VERSION, VERSION = "14.0.0", "16.0.0"
LIMIT = 0x110000
AGE_17, AGE_18 = "\ua7ce", "\ua7dd"  # capitals added in these versions


def changed_categories():
    """Runs [first, last, category] of characters that are new or have changed."""
    runs = []
    for c in range(LIMIT):
        category = unicodedata2.category(chr(c))
        if category == unicodedata.category(chr(c)):
            continue
        if runs and runs[-1][1:] == [c - 1, category]:
            runs[-1][1] = c
        else:
            runs.append([c, c, category])
    return runs


def lower_case():
    """Runs [first, last, distance] of capitals that are new."""
    runs = []
    small = "".join(regex.findall(r"\p{Ll}", "".join(map(chr, range(LIMIT)))))
    for c in range(LIMIT):
        if unicodedata.category(chr(c)) != "Cn" or not regex.match(r"\p{Lu}", chr(c)):
            continue
        mates = regex.findall("(?i)" + chr(c), small)
        assert len(mates) == 1, (hex(c), mates)
        distance = ord(mates[0]) - c
        if runs and runs[-1][1:] == [c - 1, distance]:
            runs[-1][1] = c
        else:
            runs.append([c, c, distance])
    return runs


def print_rows(items):
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 100:
            print(line)
            line = "   "
        line += f" {item},"
    print(line)


def print_table(kind, name, runs):
    print(f"constexpr {kind} {name}[] = {{")
    print_rows([f"{{0x{first:x}, 0x{last:x}, {value}}}" for first, last, value in runs])
    print("};")


def main():
    if unicodedata.unidata_version != OLD_VERSION:
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}; {OLD_VERSION} is needed")
    if unicodedata2.unidata_version != VERSION:
        sys.exit(f"unicodedata2 has Unicode {unicodedata2.unidata_version}; {VERSION} is needed")
    if not regex.match(r"\p{Lu}", AGE_17) or regex.match(r"\p{Lu}", AGE_18):
        sys.exit(f"regex {regex.__version__} does not have Unicode 17; install 2025.11.3")
    print("// Written by tools/unicode_tables.py; do not edit.")
    print('#include "tokenizers/unicode/unicode_tables.h"\n')
    print("// clang-format off")
    print("namespace megatron::tokenizers {\nnamespace {\n")
    print("using enum Category;\n")
    print_table("CategoryRun", "kCategories", changed_categories())
    print()
    print_table("LowerCaseRun", "kLowerCases", lower_case())
    print("\n}  // namespace\n")
    print("const std::span<const CategoryRun> kLaterCategories = kCategories;")
    print("const std::span<const LowerCaseRun> kLaterLowerCases = kLowerCases;\n")
    print("}  // namespace megatron::tokenizers")


if __name__ == "__main__":
    main()
