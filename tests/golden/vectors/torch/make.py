#!/usr/bin/env python3
"""Files of torch.save, from the models of the set hf.

    make.py $(tools/vectors.py find hf) OUT          needs torch and safetensors
"""

import json
import os
import shutil
import sys
import zipfile
from collections import OrderedDict
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

torch.manual_seed(5)


def as_state_dict(tensors):
    """With the non-tensor entries of nn.Module.state_dict()."""
    state = OrderedDict(tensors)
    state._metadata = OrderedDict([("", {"version": 1}), ("transformer", {"version": 1})])
    return state


def save(value, path, zipped=True, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)


def copy_config(source, target):
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        shutil.copyfile(source / name, target / name)


def gpt2(source, out):
    """As in early published models: masks, and an output layer that shares the table's storage."""
    tensors = load_file(source / "model.safetensors")
    positions = tensors["transformer.wpe.weight"].shape[0]
    for layer in range(3):
        prefix = f"transformer.h.{layer}.attn."
        tensors[prefix + "bias"] = torch.ones(positions, positions).tril().bool().view(1, 1, positions, positions)
        tensors[prefix + "masked_bias"] = torch.tensor(-1e4)
    name = "transformer.h.1.mlp.c_fc.weight"
    tensors[name] = tensors[name].t().contiguous().t()           # column-major
    name = "transformer.h.2.attn.c_attn.weight"
    wide = torch.zeros(48, 150)
    wide[:, 3:147] = tensors[name]
    tensors[name] = wide[:, 3:147]                               # a slice
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    for form in ("legacy", "zip"):
        folder = out / f"gpt2_{form}"
        copy_config(source, folder)
        save(as_state_dict(tensors), folder / "pytorch_model.bin", zipped=form == "zip")


def llama(source, out):
    """bf16, in three shards."""
    tensors = load_file(source / "model.safetensors")
    folder = out / "llama_sharded"
    copy_config(source, folder)
    names, index = sorted(tensors), {}
    for shard in range(3):
        file = f"pytorch_model-{shard + 1:05d}-of-00003.bin"
        part = names[shard * 10 : (shard + 1) * 10]
        save(OrderedDict((name, tensors[name]) for name in part), folder / file)
        index.update({name: file for name in part})
    size = sum(t.numel() * t.element_size() for t in tensors.values())
    text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=2, sort_keys=True)
    (folder / "pytorch_model.bin.index.json").write_text(text + "\n")


def small_tensors():
    """Every type; then views of one storage."""
    random = torch.randn(4, 6, dtype=torch.float64)
    tensors = OrderedDict()
    for name in "float64 float32 bfloat16 float16 int64 int32 int16 int8 uint8 uint16 bool".split():
        dtype = getattr(torch, name)
        scale = 1 if dtype.is_floating_point else 50
        values = (random * scale).abs() if name.startswith("u") else random * scale
        tensors[name] = (random > 0) if name == "bool" else values.to(dtype)
    base = tensors["float32"]
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.empty(0, 4)
    tensors["parameter"] = torch.nn.Parameter(torch.randn(3))
    tensors["same"] = base
    tensors["transposed"] = base.t()
    tensors["inner"] = base[1:3, 2:5]
    tensors["row"] = base[2]
    tensors["every_second"] = base.view(-1)[1::2]
    tensors["permuted"] = tensors["float16"].view(2, 2, 3, 2).permute(3, 0, 2, 1)
    tensors["one_row"] = base.as_strided((1, 6), (1, 1), 6)      # a dimension of one element has any stride
    tensors["scalar_inside"] = base[3, 5]
    return tensors


class System:
    def __reduce__(self):
        return os.system, ("touch executed",)


def zipped_again(source, path, compression=zipfile.ZIP_STORED, changes=(), limit=None):
    """The same entries as Python's zipfile writes them; changes: {entry: new content, or None to leave it out}."""
    changes, before = dict(changes), (zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT)
    if limit is not None:
        zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = limit, 1
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(path, "w", compression) as new:
        for entry in old.infolist():
            name = entry.filename.split("/", 1)[1]
            content = changes.get(name, old.read(entry))
            if content is not None:
                new.writestr(zipfile.ZipInfo(entry.filename), content, compression)
    zipfile.ZIP64_LIMIT, zipfile.ZIP_FILECOUNT_LIMIT = before


def small(out):
    out.mkdir(parents=True)
    tensors = small_tensors()
    plain = {name: t.detach().clone().contiguous() for name, t in tensors.items()}
    plain["bool"] = plain["bool"].to(torch.uint8)
    save_file(plain, out / "types.safetensors")
    for protocol in (2, 3, 4, 5):
        save(tensors, out / f"types_{protocol}.bin", protocol=protocol)
    for protocol in (2, 4):
        save(tensors, out / f"types_legacy_{protocol}.bin", zipped=False, protocol=protocol)
    types = out / "types_2.bin"
    zipped_again(types, out / "zip64.bin", limit=40)
    zipped_again(types, out / "compressed.bin", compression=zipfile.ZIP_DEFLATED)
    zipped_again(types, out / "big_endian.bin", changes={"byteorder": b"big"})
    zipped_again(types, out / "no_byteorder.bin", changes={"byteorder": None})
    zipped_again(types, out / "no_storage.bin", changes={"data/1": None})
    zipped_again(types, out / "short_storage.bin", changes={"data/1": b"1234"})

    one = {"a": torch.arange(3.0)}
    save(one, out / "one.bin")
    save(one, out / "one_legacy.bin", zipped=False)
    save({"a": torch.ones(3).expand(4, 3), "b": torch.arange(3.0)}, out / "expanded.bin")
    save({"a": torch.arange(3.0), "b": System()}, out / "system.bin")
    save({"a": torch.arange(3.0), "b": System()}, out / "system_4.bin", protocol=4)
    save({"a": torch.arange(3.0), "b": System()}, out / "system_legacy.bin", zipped=False)
    save(torch.nn.Linear(2, 2), out / "module.bin")
    save({"state_dict": one, "epoch": 3}, out / "nested.bin")
    save([torch.arange(3.0)], out / "list.bin")
    save({"a": torch.randn(3, dtype=torch.complex64)}, out / "complex.bin")
    save({"a": torch.ones(3).to(torch.float8_e4m3fn)}, out / "float8.bin")
    save({"a": torch.ones(2, 2).to_sparse()}, out / "sparse.bin")
    save({"a": torch.ones((1,) * 7)}, out / "rank7.bin")
    save({1: torch.ones(2)}, out / "key.bin")


def main(hf, out):
    hf, out = Path(hf), Path(out)
    gpt2(hf / "gpt2", out)
    llama(hf / "llama_bf16", out)
    small(out / "small")


if __name__ == "__main__":
    main(*sys.argv[1:])
