"""Opens model directories with PyPI's transformers and compares their logits with expected.json there.

    transformers_logits.py DIRECTORY...

Prints a line each: "model", name, class, tensors that are missing, surplus or of another shape, largest difference of
a logit, largest logit. In fp32, with the attention that is plain matrix products; weights in FP8 are decoded.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config

for directory in map(Path, sys.argv[1:]):
    quantized = "quantization_config" in json.loads((directory / "config.json").read_text(encoding="utf-8"))
    decoding = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if quantized else {}
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **decoding
    )
    expected = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        logits = model.eval()(torch.tensor([expected["tokens"]])).logits[0]
    wanted = torch.tensor(expected["logits"]).reshape(logits.shape)
    wrong = sum(len(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    difference = (logits - wanted).abs().max().item()
    print("model", directory.name, type(model).__name__, wrong, difference, logits.abs().max().item())
