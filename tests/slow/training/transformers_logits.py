"""Opens model directories with PyPI's transformers, and directories of adapters with PEFT, and compares their logits
with expected.json there.

    transformers_logits.py DIRECTORY...

Prints a line each: "model", name (of an adapter: of the folder around it), class, tensors that are missing, surplus or
of another shape, largest difference of a logit, largest logit. In fp32, with the attention that is plain matrix products; weights in FP8 are decoded.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config



def adapted(directory):
    """The class of the base model, tensors that are missing or surplus, and the model with the adapter."""
    from peft import PeftModel

    settings = json.loads((directory / "adapter_config.json").read_text(encoding="utf-8"))
    base = AutoModelForCausalLM.from_pretrained(
        settings["base_model_name_or_path"], dtype=torch.float32, attn_implementation="eager"
    )
    kind = type(base).__name__
    model = PeftModel.from_pretrained(base, directory)
    result = model.load_adapter(directory, adapter_name="default")
    wrong = [key for key in result.missing_keys if "lora_" in key] + list(result.unexpected_keys)
    return kind, len(wrong), model


def compare(directory, name, kind, wrong, model):
    expected = json.loads((directory / "expected.json").read_text(encoding="utf-8"))
    with torch.no_grad():
        logits = model.eval()(torch.tensor([expected["tokens"]])).logits[0]
    wanted = torch.tensor(expected["logits"]).reshape(logits.shape)
    difference = (logits - wanted).abs().max().item()
    print("model", name, kind, wrong, difference, logits.abs().max().item())


for directory in map(Path, sys.argv[1:]):
    if (directory / "adapter_config.json").exists():
        compare(directory, directory.parent.name, *adapted(directory))
        continue
    quantized = "quantization_config" in json.loads((directory / "config.json").read_text(encoding="utf-8"))
    decoding = {"quantization_config": FineGrainedFP8Config(dequantize=True)} if quantized else {}
    model, info = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **decoding
    )
    wrong = sum(len(info[kind]) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    compare(directory, directory.name, type(model).__name__, wrong, model)
