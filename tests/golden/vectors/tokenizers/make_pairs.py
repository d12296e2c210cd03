#!/usr/bin/env python3
"""Writes pairs.jsonl next to each tokenizer.json of trained/ and real/: pairs of texts as tokenizers 0.23.3 joins them.

    pip install tokenizers==0.23.3
    make_pairs.py [FOLDER with trained and real]
"""
import json
import pathlib
import sys

from tokenizers import Tokenizer

TEXTS = ["", "a", "Who wrote it?", "It was written in 1605 by Cervantes.", " two  spaces ", "caf\u00e9 \u4e2d\u6587 \U0001f600",
         "line\nbreak", "don't stop", "HELLO World 12345", "the cat sat on the mat"]


def lines(tokenizer):
    for i, text in enumerate(TEXTS):
        for pair in (TEXTS[(i + 1) % len(TEXTS)], TEXTS[(3 * i + 4) % len(TEXTS)]):
            encoding = tokenizer.encode(text, pair)
            yield {"text": text, "pair": pair, "ids": encoding.ids, "type_ids": encoding.type_ids}


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    for path in sorted(root.glob("trained/*/tokenizer.json")) + sorted(root.glob("real/*/tokenizer.json")):
        tokenizer = Tokenizer.from_file(str(path))
        tokenizer.no_truncation()
        with open(path.parent / "pairs.jsonl", "w", encoding="utf-8") as out:
            for line in lines(tokenizer):
                out.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
