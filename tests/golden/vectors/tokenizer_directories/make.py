#!/usr/bin/env python3
"""Random directories of tokenizers, and what the AutoTokenizer of transformers 5.24 makes of texts with each.

    make.py OUT [COUNT] [SEED]

A folder each: tokenizer.json (or tokenizer.model, or vocab.json and merges.txt), configuration files, and vectors.jsonl
for megatron tokenizer verify. Needs transformers 5.24.0, tokenizers 0.23.3 and sentencepiece 0.2.
"""

import io
import json
import os
import random
import shutil
import sys
import warnings
from pathlib import Path

os.environ["TRANSFORMERS_VERBOSITY"] = "critical"
warnings.simplefilter("ignore")

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer

TEXT = [
    "The cat sat on the mat, and the dog sat on the log.",
    "Tokens of a text are numbered; a number is an id.",
    "We're here: 12345 apples, 3.14 pies and <s>none</s> of them.",
    "def add(a, b):\n    return a + b  # sum\n",
    "Größe, café, naïve, 中文 and emoji 😀 are bytes.",
] * 8
LLAMA_PIECES = ["<unk>", "<s>", "</s>"]


def bases(folder):
    """name -> files"""
    out = {}
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    t.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=330,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    out["bytes"] = {"tokenizer.json": t.to_str()}
    made = json.loads(t.to_str())
    bare = json.loads(t.to_str())
    bare["added_tokens"] = []
    bare["post_processor"] = None
    out["bare"] = {"tokenizer.json": json.dumps(bare, ensure_ascii=False)}
    out["pair"] = {
        "vocab.json": json.dumps(made["model"]["vocab"], ensure_ascii=False),
        "merges.txt": "#version: 0.2\n" + "\n".join(" ".join(m) for m in made["model"]["merges"]) + "\n",
    }
    t.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B", special_tokens=[("<|endoftext|>", 0)]
    )
    out["template"] = {"tokenizer.json": t.to_str()}

    t = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.train_from_iterator(
        TEXT,
        trainers.BpeTrainer(
            vocab_size=420, special_tokens=[*LLAMA_PIECES, *[f"<0x{b:02X}>" for b in range(256)]], show_progress=False
        ),
    )
    j = json.loads(t.to_str())
    j["added_tokens"] = j["added_tokens"][:3]
    j["decoder"] = {
        "type": "Sequence",
        "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"},
            {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0},
        ],
    }
    j["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    out["llama"] = {"tokenizer.json": json.dumps(j, ensure_ascii=False)}
    padded = dict(j)
    padded["padding"] = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 2,
        "pad_type_id": 0,
        "pad_token": "<filler>",
    }
    out["padded"] = {"tokenizer.json": json.dumps(padded, ensure_ascii=False)}

    t = Tokenizer(models.Unigram())
    t.normalizer = normalizers.Lowercase()
    t.pre_tokenizer = pre_tokenizers.Metaspace()
    t.decoder = decoders.Metaspace()
    t.train_from_iterator(
        TEXT,
        trainers.UnigramTrainer(
            vocab_size=120, unk_token="<unk>", special_tokens=["<unk>", "<s>"], show_progress=False
        ),
    )
    out["unigram"] = {"tokenizer.json": t.to_str()}

    common = dict(num_threads=1, minloglevel=2, hard_vocab_limit=False, pad_id=-1)
    for name, options in {
        "spm_bpe": dict(
            model_type="bpe",
            vocab_size=420,
            byte_fallback=True,
            normalization_rule_name="identity",
            remove_extra_whitespaces=False,
            user_defined_symbols=["<tool>", "  "],
        ),
        "spm_plain": dict(
            model_type="bpe", vocab_size=120, normalization_rule_name="identity", control_symbols=["<ctrl>"]
        ),
        "spm_unigram": dict(
            model_type="unigram",
            vocab_size=380,
            byte_fallback=True,
            normalization_rule_name="identity",
            user_defined_symbols=["<tool>"],
        ),
    }.items():
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(TEXT), model_writer=model, **common, **options)
        out[name] = {"tokenizer.model": model.getvalue()}
    return out


WORDS = [
    "<new>",
    "<|turn|>",
    "[PAD]",
    "</s>",
    "<s>",
    "<unk>",
    "<|endoftext|>",
    "the",
    " cat",
    "sat",
    "<z>",
    "Größe",
    "<tool>",
    "[MASK]",
    "<ctrl>",
    "on",
    "▁the",
    "<pad>",
]
CLASSES = {
    "json": [
        "PreTrainedTokenizerFast",
        "GPT2TokenizerFast",
        "GPT2Tokenizer",
        "LlamaTokenizerFast",
        "LlamaTokenizer",
        "GemmaTokenizer",
        "Qwen2Tokenizer",
        "Qwen2TokenizerFast",
        "CodeGenTokenizer",
        "GPTNeoXTokenizerFast",
        "TokenizersBackend",
        "MyTokenizer",
        "Qwen3_5Tokenizer",
        None,
    ],
    "pair": ["GPT2Tokenizer", "Qwen2Tokenizer", "CodeGenTokenizer", "GPT2TokenizerFast"],
    "spm": [
        "LlamaTokenizer",
        "LlamaTokenizerFast",
        "GemmaTokenizer",
        "PreTrainedTokenizerFast",
        "LlamaTokenizer",
        None,
    ],
}
TYPES = ["llama", "qwen2", "qwen3", "gemma", "gpt2", "mistral", "phi3", "gpt_neox", "deepseek_v3", "mixtral", "olmo2"]


def token(r, content=None, full=False, tagged=False):
    content = content or r.choice(WORDS)
    if not full and r.random() < 0.6:
        return content
    t = {
        "content": content,
        "lstrip": r.random() < 0.2,
        "rstrip": r.random() < 0.2,
        "single_word": r.random() < 0.1,
        "normalized": r.random() < 0.3,
        "special": r.random() < 0.7,
    }
    if r.random() < 0.1:
        t.pop(r.choice(["lstrip", "normalized", "single_word", "special"]))
    if tagged:
        t["__type"] = "AddedToken"
    return t


def configuration(r, kind):
    files, c = {}, {}
    name = r.choice(CLASSES[kind])
    if name:
        c["tokenizer_class"] = name
    model = {}
    if not name or r.random() < 0.25:
        model["model_type"] = r.choice(TYPES)
    if model and r.random() < 0.05:
        model["tokenizer_class"] = r.choice(CLASSES[kind])
    for key in ["bos_token", "eos_token", "unk_token", "pad_token"]:
        u = r.random()
        if u < 0.35:
            c[key] = token(r, tagged=True)
        elif u < 0.42:
            c[key] = None
    for key in ["sep_token", "cls_token", "mask_token", "image_token"]:
        if r.random() < 0.08:
            c[key] = token(r, tagged=True)
    if r.random() < 0.4:
        ids = r.sample([0, 1, 2, 3, 5, 100, 118, 119, 120, 121, 330, 331, 400, 420, 421, 5000, 5001], r.randint(0, 4))
        words = r.sample(WORDS, len(ids))
        c["added_tokens_decoder"] = {str(i): token(r, w, full=True) for i, w in zip(ids, words)}
    if r.random() < 0.25:
        c[r.choice(["additional_special_tokens", "extra_special_tokens"])] = [
            token(r, tagged=True) for _ in range(r.randint(0, 3))
        ]
    elif r.random() < 0.1:
        c["extra_special_tokens"] = {"boi_token": "<boi>", "x": r.choice(WORDS)}
    for key, p in [("add_bos_token", 0.4), ("add_eos_token", 0.3), ("add_prefix_space", 0.3), ("legacy", 0.2)]:
        if r.random() < p:
            c[key] = r.random() < 0.6
    if r.random() < 0.25:
        m = {}
        for key in ["bos_token", "eos_token", "pad_token", "unk_token"]:
            if r.random() < 0.5:
                m[key] = token(r)
        if r.random() < 0.3:
            m["additional_special_tokens"] = r.sample(WORDS, 2)
        files["special_tokens_map.json"] = m
    if r.random() < 0.25:
        files["added_tokens.json"] = {w: 1000 + 7 * i for i, w in enumerate(r.sample(WORDS, r.randint(1, 3)))}
    files["tokenizer_config.json"] = c
    if model:
        files["config.json"] = model
    if not name and r.random() < 0.3 and model:
        files.pop("tokenizer_config.json")
    return files


def texts(r):
    parts = [
        *WORDS,
        " ",
        "  ",
        "\n",
        "a",
        "The cat",
        "sat on",
        " the mat",
        "é",
        "中",
        "😀",
        "12",
        "3",
        "we're",
        "\tx",
        "!",
        " ▁",
    ]
    lines = ["a<new>b", "The cat sat  on the mat.", " <s> a</s> ", "<|turn|>user\nhi<|endoftext|>"]
    for _ in range(6):
        lines.append("".join(r.choice(parts) for _ in range(r.randint(1, 9))))
    return lines


def vectors(tok, r):
    lines = [
        {
            "size": max(tok.get_vocab().values()) + 1,
            **{
                k: getattr(tok, f"{k}_token_id")
                for k in ("bos", "eos", "pad")
                if getattr(tok, f"{k}_token") is not None
            },
        }
    ]
    b = tok._tokenizer
    for text in texts(r):
        ids = tok(text, add_special_tokens=False)["input_ids"]
        special = tok(text)["input_ids"]
        lines.append(
            {
                "text": text,
                "ids": ids,
                "ids_special": special,
                "decoded": b.decode(special, skip_special_tokens=False),
                "decoded_skip_special": b.decode(special, skip_special_tokens=True),
            }
        )
    return lines


def write(folder, files):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, content in files.items():
        if not isinstance(content, (str, bytes)):
            content = json.dumps(content, ensure_ascii=False)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def main():
    out, count, seed = Path(sys.argv[1]), int((sys.argv + [0, 100])[2] or 100), int((sys.argv + [0, 0, 1])[3] or 1)
    base, r, made = bases(out), random.Random(seed), 0
    errors = {}
    while made < count:
        name = r.choice(list(base))
        kind = "spm" if name.startswith("spm") else "pair" if name == "pair" else "json"
        folder = out / f"{made:03d}"
        write(folder, {**base[name], **configuration(r, kind)})
        try:
            tok = AutoTokenizer.from_pretrained(str(folder))
            lines = vectors(tok, r)
        except Exception as e:  # a directory that transformers refuses
            errors[f"{type(e).__name__}: {str(e)[:90]}"] = errors.get(f"{type(e).__name__}: {str(e)[:90]}", 0) + 1
            continue
        lines[0]["opened_by"] = f"{type(tok).__name__}, {name}"
        (folder / "vectors.jsonl").write_text("".join(json.dumps(l, ensure_ascii=False) + "\n" for l in lines))
        made += 1
    shutil.rmtree(out / f"{made:03d}", ignore_errors=True)
    print(errors)


if __name__ == "__main__":
    main()
