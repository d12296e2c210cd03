#!/usr/bin/env python3
"""Writes directories of encoders and what they compute: without a head, and with several labels for a text.

    pip install autograd==1.9.1 scipy safetensors
    make.py HF OUT    HF: the golden vectors hf, whose encoders (bert, roberta, distilbert, modernbert, esm,
                      bert_classify) give weights and inputs; OUT: the folder to write

Plain NumPy in fp64, with gradients by autograd. Before anything is written, each model's hidden states are compared
with those that transformers computed for the same weights (hidden.* in HF; also of padding, but for ModernBERT).
"""
import json
import pathlib
import sys

import autograd.numpy as np
from autograd import grad
from autograd.scipy.special import erf
from safetensors.numpy import load_file, save_file

gelu = lambda x: x * 0.5 * (1 + erf(x / np.sqrt(2.0)))


def norm(x, w, b, eps):
    x = x - np.mean(x, -1, keepdims=True)
    x = x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps)
    return x * w + (0 if b is None else b)


def attend(q, k, v, heads, seen, rope=None):
    """q, k, v [B,T,H]; seen [B,T,T]: which keys a query sees; what one that sees none gives is not defined."""
    batch, length, hidden = q.shape
    split = lambda x: np.transpose(np.reshape(x, (batch, length, heads, hidden // heads)), (0, 2, 1, 3))
    q, k, v = split(q), split(k), split(v)
    if rope is not None:
        half = hidden // heads // 2
        angles = np.arange(length)[:, None] / rope ** (np.arange(half) / half)
        cos, sin = np.cos(np.concatenate([angles, angles], -1)), np.sin(np.concatenate([angles, angles], -1))
        turn = lambda x: x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin
        q, k = turn(q), turn(k)
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(hidden // heads)
    seen = np.where(seen.any(-1, keepdims=True), seen, True)[:, None]
    scores = np.where(seen, scores, -1e300)
    scores = np.exp(scores - np.max(scores, -1, keepdims=True))
    out = np.matmul(scores / np.sum(scores, -1, keepdims=True), v)
    return np.reshape(np.transpose(out, (0, 2, 1, 3)), (batch, length, hidden))


class Encoder:
    """tensors by their names without the base model's prefix -> (what enters each layer and leaves the last, output)"""

    def __init__(self, config, inputs):
        self.c = config
        self.ids = inputs["input_ids"]
        self.mask = inputs.get("attention_mask", np.ones_like(self.ids))
        self.types = inputs.get("token_type_ids", np.zeros_like(self.ids))

    def linear(self, w, name, x):
        bias = w.get(name + ".bias")
        return np.matmul(x, w[name + ".weight"].T) + (0 if bias is None else bias)

    def norm(self, w, name, x, eps):
        return norm(x, w[name + ".weight"], w.get(name + ".bias"), eps)

    def __call__(self, w):
        c, kind = self.c, self.c["model_type"]
        visible = np.broadcast_to(self.mask[:, None, :] > 0, (*self.ids.shape, self.ids.shape[1]))
        if kind in ("bert", "roberta"):
            positions = np.arange(self.ids.shape[1])[None] + np.zeros_like(self.ids)
            if kind == "roberta":
                real = self.ids != c["pad_token_id"]
                positions = np.cumsum(real, 1) * real + c["pad_token_id"]
            x = w["embeddings.word_embeddings.weight"][self.ids] + w["embeddings.position_embeddings.weight"][positions]
            x = x + w["embeddings.token_type_embeddings.weight"][self.types]
            x = self.norm(w, "embeddings.LayerNorm", x, c["layer_norm_eps"])
            names = {"qkv": ["attention.self.query", "attention.self.key", "attention.self.value"],
                     "out": "attention.output.dense", "norm": "attention.output.LayerNorm", "up": "intermediate.dense",
                     "down": "output.dense", "norm2": "output.LayerNorm", "layer": "encoder.layer"}
            layers, heads = c["num_hidden_layers"], c["num_attention_heads"]
            return self.post_norm(w, x, visible, names, layers, heads, c["layer_norm_eps"])
        if kind == "distilbert":
            x = w["embeddings.word_embeddings.weight"][self.ids]
            x = x + w["embeddings.position_embeddings.weight"][:self.ids.shape[1]]
            x = self.norm(w, "embeddings.LayerNorm", x, 1e-12)
            names = {"qkv": ["attention.q_lin", "attention.k_lin", "attention.v_lin"], "out": "attention.out_lin",
                     "norm": "sa_layer_norm", "up": "ffn.lin1", "down": "ffn.lin2", "norm2": "output_layer_norm",
                     "layer": "transformer.layer"}
            return self.post_norm(w, x, visible, names, c["n_layers"], c["n_heads"], 1e-12)
        if kind == "esm":
            is_mask = self.ids == c["mask_token_id"]
            scale = 0.88 / (1 - (is_mask.sum(1) / self.mask.sum(1)))
            x = w["embeddings.word_embeddings.weight"][self.ids] * (~is_mask)[..., None] * scale[:, None, None]
            x, hidden, eps = x * self.mask[..., None], [], c["layer_norm_eps"]
            for i in range(c["num_hidden_layers"]):
                hidden.append(x)
                p = f"encoder.layer.{i}."
                y = self.norm(w, p + "attention.LayerNorm", x, eps)
                q, k, v = (self.linear(w, p + "attention.self." + n, y) for n in ("query", "key", "value"))
                y = attend(q, k, v, c["num_attention_heads"], visible, c["rope_theta"])
                x = x + self.linear(w, p + "attention.output.dense", y)
                y = gelu(self.linear(w, p + "intermediate.dense", self.norm(w, p + "LayerNorm", x, eps)))
                x = x + self.linear(w, p + "output.dense", y)
            return hidden + [x], self.norm(w, "encoder.emb_layer_norm_after", x, eps)
        assert kind == "modernbert", kind
        eps, hidden = c["norm_eps"], []
        x = self.norm(w, "embeddings.norm", w["embeddings.tok_embeddings.weight"][self.ids], eps)
        places = np.arange(self.ids.shape[1])
        far = np.abs(places[:, None] - places[None]) > c["local_attention"] // 2
        for i, layer in enumerate(c["layer_types"]):
            hidden.append(x)
            p = f"layers.{i}."
            y = x if i == 0 else self.norm(w, p + "attn_norm", x, eps)
            q, k, v = np.split(self.linear(w, p + "attn.Wqkv", y), 3, -1)
            seen = visible & ~far[None] if layer == "sliding_attention" else visible
            y = attend(q, k, v, c["num_attention_heads"], seen, c["rope_parameters"][layer]["rope_theta"])
            x = x + self.linear(w, p + "attn.Wo", y)
            up, gate = np.split(self.linear(w, p + "mlp.Wi", self.norm(w, p + "mlp_norm", x, eps)), 2, -1)
            x = x + self.linear(w, p + "mlp.Wo", gelu(up) * gate)
        return hidden + [x], self.norm(w, "final_norm", x, eps)

    def post_norm(self, w, x, visible, names, layers, heads, eps):
        hidden = []
        for i in range(layers):
            hidden.append(x)
            p = f"{names['layer']}.{i}."
            q, k, v = (self.linear(w, p + n, x) for n in names["qkv"])
            y = self.linear(w, p + names["out"], attend(q, k, v, heads, visible))
            x = self.norm(w, p + names["norm"], x + y, eps)
            y = self.linear(w, p + names["down"], gelu(self.linear(w, p + names["up"], x)))
            x = self.norm(w, p + names["norm2"], x + y, eps)
        return hidden + [x], x

    def pooled(self, w, x):
        return np.tanh(self.linear(w, "pooler.dense", x[:, 0]))


def read(folder):
    weights = {k: v.astype(np.float64) for k, v in load_file(folder / "model.safetensors").items()}
    return json.loads((folder / "config.json").read_text()), weights, load_file(folder / "expected.safetensors")


def without(weights, prefix):
    return {k[len(prefix):]: v for k, v in weights.items() if k.startswith(prefix)}


def check(encoder, weights, expected):
    hidden, _ = encoder(weights)
    for i, x in enumerate(hidden):
        # Windows of padding may be empty.
        counts = encoder.mask[..., None] if encoder.c["model_type"] == "modernbert" else 1
        error = float(np.max(np.abs(x - expected[f"hidden.{i}"]) * counts))
        assert error < 2e-6, (encoder.c["model_type"], i, error)


def write(folder, config, weights, expected):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    single = lambda t: np.ascontiguousarray(t.astype(np.float32) if t.dtype == np.float64 else t)
    save_file({k: single(v) for k, v in weights.items()}, folder / "model.safetensors", metadata={"format": "pt"})
    save_file({k: single(np.asarray(v)) for k, v in expected.items()}, folder / "expected.safetensors")


def gradients(loss, weights, encoder, prefix=""):
    """Rows of padding get none, as transformers has it."""
    result = {f"grad.{k}": g for k, g in grad(loss)(weights).items()}
    pad = encoder.c["pad_token_id"]
    for name in ("embeddings.word_embeddings", "embeddings.tok_embeddings"):
        if f"grad.{prefix}{name}.weight" in result:
            result[f"grad.{prefix}{name}.weight"][pad] = 0
    if encoder.c["model_type"] == "roberta":
        result[f"grad.{prefix}embeddings.position_embeddings.weight"][pad] = 0
    return result


def headless(hf, out, name, prefix, kind, rng):
    config, weights, expected = read(hf / name)
    weights = without(weights, prefix)
    inputs = {k: expected[k] for k in ("input_ids", "attention_mask", "token_type_ids") if k in expected}
    encoder = Encoder(config, inputs)
    check(encoder, weights, expected)
    if name == "modernbert":
        del inputs["attention_mask"]
        encoder = Encoder(config, inputs)
    if name == "roberta":
        size = config["hidden_size"]
        weights["pooler.dense.weight"] = rng.normal(0, 0.3, (size, size)).astype(np.float32).astype(np.float64)
        weights["pooler.dense.bias"] = rng.normal(0, 0.3, size).astype(np.float32).astype(np.float64)
    unused = {k: weights.pop(k) for k in list(weights) if k.endswith("inv_freq")}
    pooled = "pooler.dense.weight" in weights
    hidden, last = encoder(weights)
    targets = {"target.last_hidden_state": rng.normal(0, 1, last.shape).astype(np.float32)}
    if pooled:
        targets["target.pooler_output"] = rng.normal(0, 1, (len(last), last.shape[-1])).astype(np.float32)

    def loss(w):
        _, x = encoder(w)
        total = np.sum((x - targets["target.last_hidden_state"]) ** 2)
        return total + (np.sum((encoder.pooled(w, x) - targets["target.pooler_output"]) ** 2) if pooled else 0)

    result = {**inputs, **targets, "last_hidden_state": last, "loss": loss(weights)}
    result.update(gradients(loss, weights, encoder))
    result.update({f"hidden.{i}": x for i, x in enumerate(hidden)})
    if pooled:
        result["pooler_output"] = encoder.pooled(weights, last)
    config["architectures"] = [kind]
    write(out / f"{name}_headless", config, {**weights, **unused}, result)


def several_labels(hf, out, rng):
    config, weights, expected = read(hf / "bert_classify")
    inputs = {k: expected[k] for k in ("input_ids", "attention_mask", "token_type_ids")}
    encoder = Encoder(config, inputs)
    check(encoder, without(weights, "bert."), expected)
    labels = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])

    def logits(w):
        base = without(w, "bert.")
        return encoder.linear(w, "classifier", encoder.pooled(base, encoder(base)[1]))

    assert np.max(np.abs(logits(weights) - expected["logits"])) < 2e-6

    def loss(w):
        x = logits(w)
        return np.mean(np.logaddexp(0, x) - labels * x)

    result = {**inputs, "labels": labels, "logits": logits(weights), "loss": loss(weights),
              **gradients(loss, weights, encoder, "bert.")}
    result.update({k: v for k, v in expected.items() if k.startswith("hidden.")})
    config["problem_type"] = "multi_label_classification"
    write(out / "bert_multi_label", config, weights, result)


def main():
    hf, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    rng = np.random.RandomState(20261130)
    headless(hf, out, "bert", "bert.", "BertModel", rng)
    headless(hf, out, "roberta", "roberta.", "RobertaModel", rng)
    headless(hf, out, "distilbert", "distilbert.", "DistilBertModel", rng)
    headless(hf, out, "esm", "esm.", "EsmModel", rng)
    headless(hf, out, "modernbert", "model.", "ModernBertModel", rng)
    several_labels(hf, out, rng)


if __name__ == "__main__":
    main()
