#!/usr/bin/env python3
"""Writes tests/unit/models/config_defaults.json: what transformers' configuration classes make of a config.json.

    python3 tools/config_defaults.py        (needs transformers 5.24; PyTorch is not needed)

For each model type that is read: `small`, a small configuration; `defaults`, each key that the class knows and its value
where the key is absent; `forms`, keys laid over `small` (null: a key of `small` is left out) and the keys that the class
makes of them, or null where it refuses them. The first form has all keys, the others those that differ from it. The
test of this table is tests/unit/models/config_defaults_test.cpp.
"""
import copy, dataclasses, json, pathlib, sys

if sys.argv[1:] in (["-h"], ["--help"]):
    sys.exit(print(__doc__.strip()))

import transformers
from transformers import CONFIG_MAPPING, PreTrainedConfig

TYPES = ("cohere2 deepseek_v2 deepseek_v3 falcon gemma2 gemma3_text glm4_moe gpt2 gpt_neox gpt_oss granite llama llama4_text mistral mixtral "
         "nemotron olmo2 olmoe phi3 qwen2 qwen2_moe qwen3 qwen3_moe starcoder2").split()
OUT = pathlib.Path(__file__).parent.parent / "tests/unit/models/config_defaults.json"

SIZES = {"vocab_size": 100, "hidden_size": 64, "intermediate_size": 88, "num_hidden_layers": 6,
         "num_attention_heads": 4, "max_position_embeddings": 64}
# Keys that let other keys of a type take effect.
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 16, "qk_nope_head_dim": 16, "v_head_dim": 16,
          "num_experts_per_tok": 2, "num_key_value_heads": 4}
MORE = {"deepseek_v2": LATENT, "deepseek_v3": LATENT, "qwen2": {"use_sliding_window": True}, "qwen3": {"use_sliding_window": True},
        "qwen2_moe": {"use_sliding_window": True}, "qwen3_moe": {"use_sliding_window": True},
        "phi3": {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}}}
KV_HEADS = {"num_key_value_heads": 2}  # if the class's default does not divide 4
NAMES = {"gpt2": {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
                  "max_position_embeddings": "n_positions", "intermediate_size": "n_inner"},
         "falcon": {"intermediate_size": "ffn_hidden_size"}}
# Keys that a class accepts in addition to its fields.
PATTERN = {"cohere2", "gemma3_text"}
PARTIAL = {"glm4_moe", "nemotron", "phi3"}

THETA = {"rope_type": "default", "rope_theta": 3000.0}
YARN = {"type": "yarn", "factor": 4.0}
LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def rope_forms(lists):
    longrope = {"type": "longrope", "original_max_position_embeddings": 16, **lists}
    both = {"rope_parameters": THETA}
    return [
        {"rope_theta": 5000.0},
        both,
        {**both, "rope_theta": 5000.0},
        {"rope_parameters": {"rope_type": "default"}, "rope_theta": 5000.0},
        {"rope_parameters": {}},
        {**both, "rope_scaling": {"type": "linear", "factor": 3.0}},
        {**both, "rope_scaling": {"type": "linear", "factor": 3.0}, "rope_theta": 5000.0},
        {**both, "rope_scaling": {}},
        {"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"type": "dynamic", "factor": 2.0, "rope_theta": 700.0}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": YARN},
        {"rope_scaling": {**YARN, "original_max_position_embeddings": 16}, "original_max_position_embeddings": 32},
        {"rope_scaling": {**YARN, "attention_factor": 1.5, "beta_fast": 2.0, "beta_slow": 0.5, "truncate": False,
                          "mscale": 0.7, "mscale_all_dim": 0.9}},
        {"rope_parameters": {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 16}},
        {"rope_parameters": {"rope_type": "yarn", "original_max_position_embeddings": 16}},
        {"rope_scaling": LLAMA3},
        {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 16}},
        {"rope_scaling": longrope},
        {"rope_scaling": {**longrope, "factor": 2.0}},
        {"rope_scaling": {**longrope, "factor": 2.0, "attention_factor": 1.25}},
        {"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        {"partial_rotary_factor": 0.5},
        {"rope_parameters": {**THETA, "partial_rotary_factor": 0.5}, "partial_rotary_factor": 0.75},
    ]


def forms(name, cls):
    """Overrides of `small` by type."""
    if name == "gpt2":
        return [{real: None, other: 2} for other, real in cls.attribute_map.items()]
    rope = cls().rope_parameters
    fraction = rope.get("partial_rotary_factor", 1.0)
    size = int(16 * fraction) // 2
    lists = {"short_factor": [1.0 + i for i in range(size)], "long_factor": [2.0 + i for i in range(size)]}
    out = rope_forms(lists)
    out += [{other: 12} for other, real in cls.attribute_map.items() if "experts" in real]
    fields = {f.name for f in dataclasses.fields(cls)}
    if "sliding_window" in fields:
        listed = ["sliding_attention"] * 2 + ["full_attention"] * 4
        out += [{"sliding_window": 5}, {"sliding_window": 5, "layer_types": listed}]
    if "max_window_layers" in fields:
        out += [{"max_window_layers": n} for n in (0, 3)] + [{"use_sliding_window": False, "max_window_layers": 0}]
    if name in PATTERN:
        out += [{"sliding_window_pattern": 2}, {"_sliding_window_pattern": 2}]
    if name == "falcon":
        out += [{"n_embed": 32}, {"multi_query": False}, {"new_decoder_architecture": True, "num_kv_heads": 2}]
    if name == "gpt_neox":
        out += [{"rotary_pct": 0.5}, {"rotary_emb_base": 77.0}, {"rope_parameters": THETA, "rotary_emb_base": 77.0}]
    if name == "deepseek_v2":
        groups = {"topk_method": "group_limited_greedy", "n_group": 4, "topk_group": 2}
        out += [groups, {**groups, "topk_group": 1}]
    if name == "phi3":
        yarn = {"type": "yarn", **lists}
        out += [{"rope_scaling": yarn}, {"rope_scaling": {**yarn, "factor": 3.0}},
                {"rope_scaling": {"type": "su", "original_max_position_embeddings": 16, **lists}},
                {"rope_scaling": yarn, "original_max_position_embeddings": 16}]
    if name == "gemma3_text":
        out = [f for f in out if not (f.get("rope_parameters") and "rope_scaling" in f)]
        full = {"full_attention": {"rope_type": "linear", "factor": 8.0}}
        local = {"sliding_attention": {"rope_theta": 70.0}}
        out += [{"rope_local_base_freq": 50.0}, {"rope_parameters": full, "rope_theta": 900.0},
                {"rope_parameters": {**full, **local}}, {"rope_parameters": local, "rope_local_base_freq": 50.0},
                {"rope_parameters": {**full, "sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
                {"rope_parameters": {**full, **local}, "rope_scaling": {"factor": 4.0}},
                {"rope_scaling": {"rope_type": "linear", "factor": 4.0}, "rope_theta": 900.0},
                {"rope_parameters": {"full_attention": {**YARN, "truncate": False}, **local}}]
    if name == "llama4_text":
        out += [{"no_rope_layers": [1, 0, 1, 1, 1, 1]}, {"no_rope_layers": []}, {"no_rope_layer_interval": 2},
                {"moe_layers": [1, 3]}, {"interleave_moe_layer_step": 2}, {"attention_chunk_size": 8},
                {"layer_types": ["full_attention"] * 5 + ["chunked_attention"], "attention_chunk_size": 8}]
    return out


def dump(value):
    return json.dumps(value, separators=(",", ":"))


def raw_default(field):
    return field.default_factory() if field.default is dataclasses.MISSING else field.default


def fields_of(cls):
    base = {f.name for f in dataclasses.fields(PreTrainedConfig)}
    return [f for f in dataclasses.fields(cls) if f.name not in base]


def made(cls, given):
    config = cls.from_dict(copy.deepcopy(given))
    if hasattr(config, "rope_parameters"):
        config.standardize_rope_params()  # as functions that compute frequencies do again
    return config


def defaults_of(name, cls):
    out = {f.name: raw_default(f) for f in fields_of(cls)}
    for other, real in cls.attribute_map.items():  # a field may be kept under another name
        if other in out:
            out[real] = out.pop(other)
    if name == "gpt2":
        return out
    rope = out["rope_parameters"] = made(cls, {}).rope_parameters
    if name == "gemma3_text":
        out["rope_theta"] = rope["full_attention"]["rope_theta"]
        out["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    else:
        out["rotary_emb_base" if name == "gpt_neox" else "rope_theta"] = rope["rope_theta"]
    if name in PARTIAL:
        out["partial_rotary_factor"] = rope["partial_rotary_factor"]
    if name == "gpt_neox":
        out["rotary_pct"] = rope["partial_rotary_factor"]
    if name in PATTERN:
        types = cls().layer_types
        same = [n for n in range(1, 9) if cls(sliding_window_pattern=n).layer_types == types]
        out["sliding_window_pattern"], = same
    return out


def small_of(name, cls):
    small = {NAMES.get(name, {}).get(key, key): value for key, value in SIZES.items()}
    small.update(MORE.get(name, {}))
    kv = getattr(cls(), "num_key_value_heads", None)
    if kv is not None and 4 % kv and "num_key_value_heads" not in small:
        small.update(KV_HEADS)
    if "head_dim" in {f.name for f in fields_of(cls)}:
        small["head_dim"] = 16
    return small


def form_of(name, cls, small, over):
    """The keys that fully describe the class's interpretation of small with `over`; None if it refuses them."""
    given = {k: v for k, v in {**small, **over}.items() if not (v is None and k in small)}
    try:
        config = made(cls, {**given})
    except Exception:
        return None
    fields = {f.name for f in fields_of(cls)}
    names = [cls.attribute_map.get(f, f) for f in fields]
    says = {n: getattr(config, n) for n in names if n != "rope_parameters"}
    says = {n: v for n, v in says.items() if v is not None or n == "sliding_window"}
    rope = getattr(config, "rope_parameters", None)
    if rope is not None:
        says["rope_parameters"] = rope
        if name == "gemma3_text":
            says["rope_parameters"] = {k: rope[k] for k in ("full_attention", "sliding_attention")}
    return {k: v for k, v in sorted(says.items()) if not (k in small and small[k] == v)}


def main():
    lines = []
    for name in TYPES:
        cls = CONFIG_MAPPING[name]
        small, defaults = small_of(name, cls), defaults_of(name, cls)
        rows = []
        plain = form_of(name, cls, small, {})
        for over in [{}] + forms(name, cls):
            says = form_of(name, cls, small, over)
            if says is not None and over:
                says = {k: v for k, v in says.items() if k not in plain or plain[k] != v}
            rows.append(f'   {{"over": {dump(over)}, "is": {dump(says)}}}')
        lines.append(f' "{name}": {{\n  "small": {dump(small)},\n  "defaults": {dump(defaults)},\n'
                     f'  "forms": [\n' + ",\n".join(rows) + "]}")
    OUT.write_text(f'{{"transformers": "{transformers.__version__}", "types": {{\n' + ",\n".join(lines) + "}}\n")


if __name__ == "__main__":
    main()
