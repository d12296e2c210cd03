#!/usr/bin/env python3
"""Encodes the same documents with Hugging Face tokenizers, tiktoken and `megatron preprocess`.

    pip install tokenizers tiktoken numpy
    bench/tokenizers_comparison.py --megatron build/megatron --input english.jsonl \\
        --tokenizer-model gpt2 [--megabytes 30] [--rounds 3] [--train]

The tokenizer is a directory with GPT-2's vocab.json, merges.txt and tokenizer.json. One core each
(pin the script with taskset), rounds interleaved, the best of each counts. The others encode texts
that are in memory already; preprocess is timed whole: start, reading, JSON, encoding, writing. Its
ids are compared with theirs, document by document. --train also times training of 32,000 tokens.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_letters():
    """GPT-2's letter of each byte."""
    plain = [*range(0x21, 0x7f), *range(0xa1, 0xad), *range(0xae, 0x100)]
    letters = {b: chr(b) for b in plain}
    for b in range(256):
        if b not in letters:
            letters[b] = chr(0x100 + len(letters) - len(plain))
    return letters


def hugging_face(model):
    from tokenizers import Tokenizer
    tokenizer = Tokenizer.from_file(f"{model}/tokenizer.json")
    return lambda text: tokenizer.encode(text, add_special_tokens=False).ids


def tik_token(model):
    import tiktoken
    byte_of = {letter: b for b, letter in byte_letters().items()}
    with open(f"{model}/vocab.json", encoding="utf-8") as f:
        vocabulary = json.load(f)
    ranks = {bytes(byte_of[c] for c in token): i for token, i in vocabulary.items()
             if token != "<|endoftext|>"}
    encoding = tiktoken.Encoding("gpt2", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    return encoding.encode_ordinary


def read_documents(path, limit):
    lines, texts, size = [], [], 0
    with open(path, encoding="utf-8") as f:
        for line in f:
            text = json.loads(line)["text"]
            lines.append(line)
            texts.append(text)
            size += len(text.encode())
            if size >= limit:
                break
    return lines, texts, size


def timed(call):
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr}")


def same_ids(prefix, reference):
    import numpy
    ids = numpy.fromfile(prefix + "_text_document.bin", dtype=numpy.uint16)
    theirs = numpy.fromiter((i for document in reference for i in document), dtype=numpy.int64)
    return len(ids) == len(theirs) and bool((ids == theirs).all())


def train_hugging_face(path):
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=32000, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([path], trainer)
    return [" ".join(m) for m in json.loads(tokenizer.to_str())["model"]["merges"]]


def compare_training(megatron, folder, texts):
    path = f"{folder}/corpus.txt"
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(texts))
    theirs, their_time = timed(lambda: train_hugging_face(path))
    _, our_time = timed(lambda: run(
        megatron, "tokenizer", "train", "--input", path, "--vocab-size", "32000", "--threads", "1",
        "--output", f"{folder}/trained"))
    with open(f"{folder}/trained/tokenizer.json", encoding="utf-8") as f:
        ours = [m if isinstance(m, str) else " ".join(m) for m in json.load(f)["model"]["merges"]]
    print(f"training 32,000 tokens, one thread: Hugging Face {their_time:.2f} s, megatron "
          f"{our_time:.2f} s (whole command): {their_time / our_time:.1f} times; merges "
          f"{'equal' if ours == theirs else 'DIFFER'}")
    return ours == theirs


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--input", required=True)
    parser.add_argument("--tokenizer-model", required=True)
    parser.add_argument("--megabytes", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", action="store_true")
    args = parser.parse_args()

    lines, texts, size = read_documents(args.input, args.megabytes * 1e6)
    if len(set(texts)) != len(texts):
        sys.exit(f"{args.input}: a document occurs twice")
    print(f"{len(texts)} documents, {size / 1e6:.1f} MB, no two alike")
    others = {}
    for name, package, make in [("Hugging Face tokenizers", "tokenizers", hugging_face),
                                ("tiktoken", "tiktoken", tik_token)]:
        if importlib.util.find_spec(package) is None:
            print(f"{name}: not measured, Python has no package {package}")
        else:
            others[name] = make(args.tokenizer_model)

    best, ids, good = {}, {}, True
    with tempfile.TemporaryDirectory() as folder:
        with open(f"{folder}/input.jsonl", "w", encoding="utf-8") as f:
            f.writelines(lines)
        for turn in range(args.rounds):
            for name, encode in others.items():
                ids[name], seconds = timed(lambda: [encode(text) for text in texts])
                best[name] = min(seconds, best.get(name, seconds))
            _, seconds = timed(lambda: run(
                args.megatron, "preprocess", "--input", f"{folder}/input.jsonl", "--output-prefix",
                f"{folder}/{turn}", "--tokenizer-model", args.tokenizer_model, "--workers", "1"))
            best["megatron preprocess"] = min(seconds, best.get("megatron preprocess", seconds))
        ours = best["megatron preprocess"]
        for name, seconds in best.items():
            note = ""
            if name in others:
                equal = same_ids(f"{folder}/0", ids[name])
                good &= equal
                note = f", megatron is {seconds / ours:.2f} times as fast, ids " \
                       f"{'equal' if equal else 'DIFFER'}"
            print(f"{name}: {size / 1e6 / seconds:.2f} MB/s{note}")
        if args.train:
            good &= compare_training(args.megatron, folder, texts)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
