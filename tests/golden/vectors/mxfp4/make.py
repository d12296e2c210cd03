#!/usr/bin/env python3
"""GPT-OSS directories with experts in MXFP4, as released, and what transformers reads from them.

    make.py OUT          needs torch, transformers and safetensors
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import GptOssConfig, GptOssForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

torch.manual_seed(7)
HIDDEN, FFN, EXPERTS, LAYERS = 64, 32, 2, 2


def packed(rows, columns):
    """Random blocks, with scales that give weights of about 0.02."""
    blocks = torch.randint(0, 256, (EXPERTS, rows, columns // 32, 16), dtype=torch.uint8)
    return blocks, torch.randint(116, 122, (EXPERTS, rows, columns // 32), dtype=torch.uint8)


def config():
    return GptOssConfig(
        num_hidden_layers=LAYERS, num_local_experts=EXPERTS, num_experts_per_tok=1, vocab_size=64,
        hidden_size=HIDDEN, intermediate_size=FFN, head_dim=16, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=8, max_position_embeddings=64, rope_scaling=None,
        pad_token_id=0, eos_token_id=1, architectures=["GptOssForCausalLM"], dtype="bfloat16")


def save_config(folder, **keys):
    folder.mkdir(parents=True)
    values = {**config().to_diff_dict(), **keys}
    (folder / "config.json").write_text(json.dumps(values, indent=2, sort_keys=True) + "\n")


def directories(out):
    model = GptOssForCausalLM(config()).to(torch.bfloat16)
    plain = {name: value.contiguous() for name, value in model.state_dict().items()}
    first, second = {}, {}
    for name, value in list(plain.items()):
        shard = second if ".layers.1." in name else first
        if value.dim() != 3:
            shard[name] = value
            continue
        blocks, scales = packed(value.shape[2], value.shape[1])
        shard[name + "_blocks"] = blocks
        second[name + "_scales"] = scales
        plain[name] = convert_moe_packed_tensors(blocks, scales).contiguous()
        assert plain[name].shape == value.shape and plain[name].dtype == torch.bfloat16
    save_config(out / "released", quantization_config={
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router",
                                   "model.embed_tokens", "lm_head"],
        "quant_method": "mxfp4"})
    files = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for file, tensors in files.items():
        save_file(tensors, out / "released" / file, metadata={"format": "pt"})
    index = {"metadata": {}, "weight_map": {t: f for f, tensors in files.items() for t in sorted(tensors)}}
    (out / "released" / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
    save_config(out / "bf16")
    save_file(plain, out / "bf16" / "model.safetensors", metadata={"format": "pt"})


def every_value(out):
    """All 16 values with each scale except 255, which is NaN in the format and an infinity
    there."""
    scales = torch.arange(255, dtype=torch.uint8).view(1, 255, 1)
    codes = torch.arange(32, dtype=torch.uint8) % 16
    blocks = (codes[0::2] | codes[1::2] << 4).expand(1, 255, 1, 16).contiguous()
    save_file({"x_blocks": blocks, "x_scales": scales,
               "x": convert_moe_packed_tensors(blocks, scales).contiguous()}, out / "values.safetensors")


directories(Path(sys.argv[1]))
every_value(Path(sys.argv[1]))
