#!/usr/bin/env python3
"""Trains Hugging Face's BpeTrainer on own.txt and ties.txt and writes what it learned.

    pip install tokenizers==0.23.3
    python3 make.py

One folder a case: params.json (the options), vocab.json and merges.txt (the result), and ids of
the text's end as the trained tokenizer encodes it.
"""

import json
import os

from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

PATTERNS = {
    "llama3": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| "
              r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| "
             r"?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
END = "<|endoftext|>"
CASES = {
    "own_v4000_min2": dict(vocab_size=4000, min_frequency=2, special_tokens=[END]),
    "own_v9000_min0": dict(vocab_size=9000, min_frequency=0, special_tokens=[END]),
    "own_v2000_seen": dict(vocab_size=2000, min_frequency=0, special_tokens=[],
                           initial_alphabet="seen"),
    "own_v2000_prefix_len6": dict(vocab_size=2000, min_frequency=2, special_tokens=["<s>"],
                                  max_token_length=6, add_prefix_space=True),
    "own_v3000_llama3": dict(vocab_size=3000, min_frequency=0, pattern="llama3",
                             special_tokens=["<|begin_of_text|>", "<|end_of_text|>"]),
    "own_v3000_qwen2": dict(vocab_size=3000, min_frequency=0, pattern="qwen2",
                            special_tokens=[END, "<|im_start|>", "<|im_end|>"]),
    "ties_v1500_len5": dict(corpus="ties.txt", vocab_size=1500, min_frequency=2,
                            special_tokens=[END, "<|pad|>", "ab"], initial_alphabet="seen",
                            max_token_length=5),
    "ties_v3000_min0": dict(corpus="ties.txt", vocab_size=3000, min_frequency=0,
                            special_tokens=[END, "<|pad|>", "ab"], initial_alphabet="seen"),
}
DEFAULTS = dict(corpus="own.txt", initial_alphabet="bytes", max_token_length=None,
                add_prefix_space=False, pattern="gpt2")


def train(params):
    tokenizer = Tokenizer(models.BPE())
    pattern = PATTERNS.get(params["pattern"])
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=params["add_prefix_space"],
                                          use_regex=pattern is None)
    tokenizer.pre_tokenizer = bytes_only
    if pattern:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_only])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if params["initial_alphabet"] == "bytes" else []
    trainer = trainers.BpeTrainer(
        vocab_size=params["vocab_size"], min_frequency=params["min_frequency"],
        special_tokens=params["special_tokens"], initial_alphabet=alphabet,
        max_token_length=params["max_token_length"], show_progress=False)
    tokenizer.train([params["corpus"]], trainer)
    with open(params["corpus"], encoding="utf-8", newline="") as f:
        text = f.read()[-1500:]
    return json.loads(tokenizer.to_str())["model"], {"text": text, "ids": tokenizer.encode(text).ids}


def main():
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    for name, case in CASES.items():
        params = {**DEFAULTS, **case}
        model, encoded = train(params)
        os.makedirs(name, exist_ok=True)
        with open(f"{name}/params.json", "w", encoding="utf-8") as f:
            json.dump(params, f, indent=1)
            f.write("\n")
        with open(f"{name}/vocab.json", "w", encoding="utf-8") as f:
            json.dump(model["vocab"], f, ensure_ascii=False)
        with open(f"{name}/encoded.json", "w", encoding="utf-8") as f:
            json.dump(encoded, f, ensure_ascii=False)
        with open(f"{name}/merges.txt", "w", encoding="utf-8") as f:
            f.writelines(f"{a} {b}\n" for a, b in model["merges"])


if __name__ == "__main__":
    main()
