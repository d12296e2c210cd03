#!/usr/bin/env python3
"""Decodes with llama.cpp and with `megatron bench generate`, in turn: one sequence, and eight at once.

    pip install gguf llama-cpp-python        # builds llama.cpp for this machine: minutes
    bench/llama_cpp_comparison.py --megatron build/release/megatron [--type bf16] [--threads 2] [--rounds 3]

The model is a preset of the Llama shape with random weights, which `megatron train` saves as a Hugging Face
directory and this script writes as GGUF. Both have the same type of weights and the same threads. llama.cpp keeps
keys and values in f32 for f32 and else in f16. A rate is that of the median step; prompts do not count.
"""

import argparse
import ctypes
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

BATCHES = (1, 8)
LAYER_TENSORS = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}
OTHER_TENSORS = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                 "lm_head.weight": "output.weight"}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megatron", required=True)
    parser.add_argument("--preset", default="llama-160m", help="one of the Llama shape")
    parser.add_argument("--type", default="bf16", choices=["f32", "bf16"])
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--max-tokens", type=int, default=128)
    return parser.parse_args()


def run(*command):
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    return done.stdout


def save_model(a, folder):
    """A Hugging Face directory with the preset's initial weights; its one step has a learning rate of 0."""
    run(a.megatron, "train", "--preset", a.preset, "--mock-data", "--train-iters", "1", "--lr", "0", "--seq-length",
        "32", "--max-position-embeddings", "1024", "--micro-batch-size", "1", "--global-batch-size", "1",
        "--eval-iters", "0", "--no-save-optim", "--save", folder, *(["--bf16"] if a.type == "bf16" else []))
    return f"{folder}/iter_0000001"


def safetensors(directory):
    """Name, type and array of each tensor; bf16 as uint16."""
    import numpy
    for name in sorted(n for n in os.listdir(directory) if re.match(r"model.*\.safetensors$", n)):
        data = numpy.memmap(f"{directory}/{name}", dtype=numpy.uint8, mode="r")
        begin = 8 + int(data[:8].view("<u8")[0])
        for tensor, entry in json.loads(bytes(data[8:begin])).items():
            if tensor == "__metadata__":
                continue
            low, high = (begin + offset for offset in entry["data_offsets"])
            kind = {"F32": "<f4", "BF16": "<u2"}[entry["dtype"]]
            yield tensor, entry["dtype"], numpy.frombuffer(data[low:high].tobytes(), kind).reshape(entry["shape"])


def interleaved(weight, heads):
    """Rows of each head in GGUF's order, in which the two numbers rotated by an angle are adjacent."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def gguf_name(name):
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)\.weight", name)
    return f"blk.{layer[1]}.{LAYER_TENSORS[layer[2]]}.weight" if layer else OTHER_TENSORS[name]


def write_gguf(directory, path):
    import gguf
    import numpy
    with open(f"{directory}/config.json", encoding="utf-8") as f:
        config = json.load(f)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head = config.get("head_dim") or config["hidden_size"] // heads
    theta = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(theta)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    for name, kind, weight in safetensors(directory):
        if "q_proj" in name or "k_proj" in name:
            weight = interleaved(weight, heads if "q_proj" in name else kv_heads)
        weight = numpy.ascontiguousarray(weight)
        if kind == "F32":
            writer.add_tensor(gguf_name(name), weight)
        elif weight.ndim == 1:  # llama.cpp requires norms in f32
            writer.add_tensor(gguf_name(name), (weight.astype(numpy.uint32) << 16).view(numpy.float32))
        else:
            writer.add_tensor(gguf_name(name), weight.view(numpy.uint8),
                              raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    def __init__(self, a, path):
        import llama_cpp
        self.lib, self.a = llama_cpp, a
        self.silence = llama_cpp.llama_log_callback(lambda *_: None)  # kept: llama.cpp calls it
        llama_cpp.llama_log_set(self.silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def decode(self, sequences):
        """Tokens/s of the median step, greedy."""
        import numpy
        lib, a = self.lib, self.a
        params = lib.llama_context_default_params()
        params.n_ctx = sequences * (a.prompt_tokens + a.max_tokens)
        params.n_batch = params.n_ubatch = sequences * a.prompt_tokens
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = a.threads
        if a.type == "f32":
            params.type_k = params.type_v = 0  # GGML_TYPE_F32
        context = lib.llama_init_from_model(self.model, params)
        batch = lib.llama_batch_init(params.n_batch, 0, 1)

        def compute(tokens):  # (token, position, sequence, wanted): the next tokens of the wanted ones
            batch.n_tokens = len(tokens)
            for i, (token, position, sequence, wanted) in enumerate(tokens):
                batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            if lib.llama_decode(context, batch) != 0:
                sys.exit("llama.cpp: llama_decode failed")
            rows = [i for i, token in enumerate(tokens) if token[3]]
            logits = [lib.llama_get_logits_ith(context, i) for i in rows]
            return [int(numpy.ctypeslib.as_array(row, (self.vocabulary,)).argmax()) for row in logits]

        last = a.prompt_tokens - 1
        drawn = compute([((t * 7919 + 13 + s * 104729) % self.vocabulary, t, s, t == last)
                         for s in range(sequences) for t in range(a.prompt_tokens)])
        seconds = []
        for step in range(a.max_tokens - 1):
            begin = time.perf_counter()
            drawn = compute([(token, a.prompt_tokens + step, s, True) for s, token in enumerate(drawn)])
            seconds.append(time.perf_counter() - begin)
        lib.llama_batch_free(batch)
        lib.llama_free(context)
        return sequences / statistics.median(seconds)


def megatron(a):
    out = run(a.megatron, "bench", "generate", "--preset", a.preset, "--prompt-tokens", str(a.prompt_tokens),
              "--max-tokens", str(a.max_tokens), "--batch-size", str(max(BATCHES)), "--threads", str(a.threads),
              "--device", "cpu", *(["--bf16"] if a.type == "bf16" else []))
    rates = {int(b): float(r) for b, r in re.findall(r"^decode, batch of (\d+): ([\d.]+) tokens/s", out, re.M)}
    return {batch: rates[batch] for batch in BATCHES}


def main():
    a = arguments()
    missing = [p for p in ("llama_cpp", "gguf", "numpy") if importlib.util.find_spec(p) is None]
    if missing:
        print(f"Python has no package {', '.join(missing)}: nothing to compare with")
        return
    rates = {(name, batch): [] for name in ("llama.cpp", "megatron") for batch in BATCHES}
    with tempfile.TemporaryDirectory() as folder:
        write_gguf(save_model(a, f"{folder}/model"), f"{folder}/model.gguf")
        llama = LlamaCpp(a, f"{folder}/model.gguf")
        for _ in range(a.rounds):
            for batch in BATCHES:
                rates["llama.cpp", batch].append(llama.decode(batch))
            for batch, rate in megatron(a).items():
                rates["megatron", batch].append(rate)
            print("; ".join(f"{name}, batch of {batch}: {values[-1]:.1f} tokens/s"
                            for (name, batch), values in rates.items()), flush=True)
    print(f"{a.preset}, {a.type}, {a.threads} threads, {a.prompt_tokens} tokens of prompt and {a.max_tokens} of text; "
          f"decoded tokens/s, median of {a.rounds} rounds (lowest to highest)")
    for batch in BATCHES:
        medians = {}
        for name in ("llama.cpp", "megatron"):
            values = rates[name, batch]
            medians[name] = statistics.median(values)
            print(f"batch of {batch}: {name:<9} {medians[name]:8.1f}   ({min(values):.1f} to {max(values):.1f})")
        print(f"batch of {batch}: megatron is {medians['megatron'] / medians['llama.cpp']:.2f} times llama.cpp")


if __name__ == "__main__":
    main()
