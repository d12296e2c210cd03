#!/usr/bin/env python3
"""Writes components.jsonl: what Hugging Face's tokenizers make of texts with random normalisers and
pre-tokenizers.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3
    python make_components.py

A line: "normalizer", "pre_tokenizer" (as in tokenizer.json) and "cases", each "text", "normalized",
"offsets" (flat start, end of each piece, in code points of the text) and "pieces" (left out where
the pieces cannot be had). Combinations on which the library itself panics are left out.
"""

import base64
import io
import json
import os
import random
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2
from tokenizers import PreTokenizedString, Tokenizer

RULES = [
    ("A", "a"), ("é", "e"), ("½", "1⁄2"), ("\t", " "), ("\r", " "), ("ﷺ", "صلى الله"), ("ﬁ", "fi"),
    ("\u00ad", ""), ("\u200b", ""), ("가", "\u1100\u1161"), ("ae", "æ"), ("a\u0323", "ạ"), ("İ", "i"),
]
RANGES = [
    (0x20, 0x7F), (0, 0x20), (0x7F, 0x250), (0x300, 0x370), (0x370, 0x530), (0x590, 0x700),
    (0x900, 0xE80), (0x1100, 0x1200), (0x1E00, 0x2190), (0x2460, 0x2500), (0x3000, 0x3100),
    (0x3300, 0x3400), (0x4E00, 0x4F00), (0xAC00, 0xAD00), (0xF900, 0xFB50), (0xFB50, 0x10000),
    (0x10000, 0x12000), (0x1D400, 0x1D800), (0x1F1E0, 0x1F700), (0x2F800, 0x2FA20),
]
SNIPPETS = list("   ▁_\t\n\r''``--..,!?ab12ABé") + [
    "\r\n", "\u0301", "\u0323", "e\u0301", "e\u0323\u0301", "İ", "ß", "ﬁ", "½", "ﷺ", "각", "\u1100\u1161",
    "👨\u200d👩", "🇩🇪", "\ufffd", "\u00ad", "\u200b", "क्ष", "\u0344\u0323", "A\u0301", "1,234.5", "word",
]
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
rng = random.Random(20250309)


def coin():
    return rng.random() < 0.5


def character_map():
    rules = "".join(
        " ".join(f"{ord(c):X}" for c in old) + "\t" + " ".join(f"{ord(c):X}" for c in new) + "\n"
        for old, new in RULES
    )
    with open("rules.tsv", "w") as file:
        file.write(rules)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a b c d e f"] * 10), model_writer=model, vocab_size=10,
        model_type="char", normalization_rule_tsv="rules.tsv", minloglevel=2,
    )
    os.remove("rules.tsv")
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())
    return base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()


MAP = character_map()


def pattern():
    if coin():
        return {"String": rng.choice([" ", "  ", "a", "▁", "''", "é", "--", "\n", "1", ""])}
    return {"Regex": rng.choice([r"\s+", " {2,}", r"\p{L}+", "[a-z]", r"\s", "(?=[A-Z])", "x*",
                                 r"\p{N}{1,3}", r"[^\s]+", r"\p{M}", r"\n|$"])}


def normalizer():
    kind = rng.choice(["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel",
                       "BertNormalizer", "Strip", "Prepend", "Replace", "Precompiled"])
    fields = {
        "BertNormalizer": lambda: {"clean_text": coin(), "handle_chinese_chars": coin(),
                                   "strip_accents": rng.choice([None, True, False]),
                                   "lowercase": coin()},
        "Strip": lambda: {"strip_left": coin(), "strip_right": coin()},
        "Prepend": lambda: {"prepend": rng.choice(["▁", "ab", " ", "é▁"])},
        "Replace": lambda: {"pattern": pattern(), "content": rng.choice(["", " ", "▁", "xyz", "é"])},
        "Precompiled": lambda: {"precompiled_charsmap": MAP},
    }
    return {"type": kind, **fields.get(kind, dict)()}


def pre_tokenizer():
    kind = rng.choice(["ByteLevel", "Split", "Split", "Metaspace", "Digits", "BertPreTokenizer",
                       "Punctuation", "Whitespace", "WhitespaceSplit", "CharDelimiterSplit",
                       "UnicodeScripts", "FixedLength"])
    fields = {
        "ByteLevel": lambda: {"add_prefix_space": coin(), "trim_offsets": True, "use_regex": coin()},
        "Split": lambda: {"pattern": pattern(), "behavior": rng.choice(BEHAVIORS), "invert": coin()},
        "Metaspace": lambda: {"replacement": rng.choice("▁_é"), "split": coin(),
                              "prepend_scheme": rng.choice(["always", "first", "never"])},
        "Digits": lambda: {"individual_digits": coin()},
        "Punctuation": lambda: {"behavior": rng.choice(BEHAVIORS)},
        "CharDelimiterSplit": lambda: {"delimiter": rng.choice(" ,é▁a")},
        "FixedLength": lambda: {"length": rng.choice([1, 2, 5])},
    }
    return {"type": kind, **fields.get(kind, dict)()}


def some(make, name, field):
    kind = rng.random()
    if kind < 0.1:
        return None
    if kind < 0.5:
        return make()
    if kind < 0.9:
        return {"type": name, field: [make() for _ in range(rng.randrange(4))]}
    return {"type": name, field: [make(), {"type": name, field: [make(), make()]}]}


def text():
    size = rng.choice([0, 1, 3, 8, 15, 25])
    ranges = [rng.choice(RANGES) for _ in range(2)]
    parts = []
    for _ in range(size):
        if rng.random() < 0.6:
            parts.append(rng.choice(SNIPPETS))
        else:
            parts.append(chr(rng.randrange(*rng.choice(ranges))))
    return "".join(parts)


def pieces(tokenizer, string):
    whole = PreTokenizedString(string)
    if tokenizer.normalizer:
        whole.normalize(tokenizer.normalizer.normalize)
    if tokenizer.pre_tokenizer:
        tokenizer.pre_tokenizer.pre_tokenize(whole)
    splits = whole.get_splits(offset_referential="original", offset_type="char")
    return [piece for piece, _, _ in splits], [list(offsets) for _, offsets, _ in splits]


def run(normalizer_json, pre_tokenizer_json, string):
    tokenizer = Tokenizer.from_str(json.dumps({
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": normalizer_json, "pre_tokenizer": pre_tokenizer_json, "post_processor": None,
        "decoder": None, "model": {"type": "WordLevel", "vocab": {"?": 0}, "unk_token": "?"}}))
    offsets = [list(o) for o in tokenizer.encode(string, add_special_tokens=False).offsets]
    case = {"text": string, "normalized": string, "offsets": sum(offsets, [])}
    if tokenizer.normalizer:
        case["normalized"] = tokenizer.normalizer.normalize_str(string)
    found, places = pieces(tokenizer, string)
    if places == offsets:
        case["pieces"] = found
    return case


def main():
    lines = []
    for _ in range(200):
        first = some(normalizer, "Sequence", "normalizers")
        second = some(pre_tokenizer, "Sequence", "pretokenizers")
        cases = []
        for _ in range(6):
            try:
                cases.append(run(first, second, text()))
            except BaseException as error:  # a panic of the library
                if isinstance(error, KeyboardInterrupt):
                    sys.exit(1)
        if cases:
            lines.append({"normalizer": first, "pre_tokenizer": second, "cases": cases})
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "components.jsonl"), "w") as out:
        for line in lines:
            out.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


main()
