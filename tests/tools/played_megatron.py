"""Plays megatron on a GPU for test_gpu_check: it trains what is recorded.

FAULT plants troubles, with commas between them.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

words, faults = sys.argv[1:], os.environ.get("FAULT", "").split(",")


def value(flag):
    return words[words.index(flag) + 1] if flag in words else ""


def end(*lines, code=0):
    print(*lines, sep="\n", flush=True)
    sys.exit(code)


def device():
    if "first crashes" in faults:
        os.abort()
    if "first hangs" in faults or "nothing answers" in faults:
        time.sleep(60)
    library = {
        "name": "cuBLASLt",
        "version": "13.1.0",
        "path": "/lib/libcublasLt.so.13",
        "usable": True,
    }
    library |= {"needed_by": "matrix products", "required": True, "why_not": ""}
    missing = {"name": "cuDNN", "version": "8.9.7", "path": "/lib/libcudnn.so.8", "usable": False}
    missing |= {
        "needed_by": "attention in bf16 and fp16",
        "required": False,
        "why_not": "cuDNN 9 is needed",
    }
    check = {
        "name": "matrix product",
        "passed": True,
        "seconds": 0.1,
        "result": "1e-7 off",
        "why_not": "",
    }
    report = {
        "device": "NVIDIA Play",
        "memory": 2**37,
        "compute_capability": "9.0",
        "driver": "13.0",
    }
    report |= {
        "cuda": "13.0",
        "libraries": [library],
        "checks": [check],
        "passed": True,
        "what_to_do": "",
    }
    code = 0
    if "no GPU" in faults:
        why = "no NVIDIA driver is loaded"
        report |= {
            "device": "",
            "passed": False,
            "checks": [],
            "what_to_do": f"{why}: give the container a GPU",
        }
        code = 2
    if "library missing" in faults:
        library |= {
            "usable": False,
            "path": "",
            "version": "",
            "why_not": "libcublasLt.so.13 is not found",
        }
        report |= {"passed": False, "checks": [], "what_to_do": "pip install nvidia-cublas"}
        code = 2
    if "other version" in faults:
        report["libraries"].append(missing)
    if "failed check" in faults:
        check |= {"passed": False, "why_not": "0.5 off"}
        code = 1
    if "check hangs" in faults:
        check |= {"passed": False, "hung": True, "why_not": "it did not finish"}
        code = 1
    print("09:00:00 info {a line of the log}", file=sys.stderr, flush=True)
    end(json.dumps(report, indent=1), "09:00:01 info done", code=code)


def selftest():
    if words[1:2] == ["device"]:
        device()
    if "--list" in words:
        if "list" in faults:
            end("error: the list cannot be made", code=1)
        end("row 0: gpt2" if "--layouts" in words else "kernels/fill")
    name = value("--filter").lstrip("=") or "row 0: gpt2"
    if "nothing answers" in faults:
        time.sleep(60)
    print("NVIDIA Play; CUDA 1.0", flush=True)
    if "folder gone" in faults and name == "kernels/unit_norm":
        folder = Path(os.environ["OUT"])
        shutil.rmtree(folder)
        folder.touch()
    if "crash" in faults and name == "kernels/unit_norm":
        os.abort()
    if "not UTF-8" in faults and name == "kernels/unit_norm":
        os.write(1, b"\xff\xfe error: \x80\n")
    if "hang" in faults and name == "gradients/add":
        Path(os.environ["TMPDIR"], "hanging").touch()
        time.sleep(60)
    if "check" in faults and name == "model/gpt2 fp32":
        end("FAILED  model/gpt2 fp32  1 of 9 compared", "0 passed, 1 failed", code=1)
    end(
        f"ok      {name:<40}     3 compared, 1.0e-01 of the tolerance, 0.1 s",
        "1 passed, 0 failed",
    )


def train():
    rest = "--save" if "--save" in words else "--log-interval"
    flags = " ".join(words[3 : words.index(rest)])
    recorded = json.load(open(os.environ["LOSSES"], encoding="utf-8")).values()
    launch = [9.0] if "launch" in os.getcwd() else None
    losses = launch or next(r["losses"] for r in recorded if r["flags"] == flags)
    run = Path("run/latest_checkpointed_iteration.txt")
    done = int(run.read_text(encoding="utf-8")) if "--load" in words and run.exists() else 0
    with open(value("--log-jsonl"), "a", encoding="utf-8") as log:
        for step, loss in enumerate(losses, 1):
            if step <= done:
                continue
            if "loss" in faults and step == 2:
                loss *= 1.01
            if "bits" in faults and "twice" in os.getcwd() and os.getcwd().endswith("1"):
                loss += 1e-7
            if "resume" in faults and done:
                loss += 1e-7
            record = {"type": "step", "iteration": step, "loss": loss, "gradient_norm": 1.5}
            log.write(json.dumps(record) + "\n")
            log.flush()
            if "--save" in words:
                run.parent.mkdir(exist_ok=True)
                run.write_text(str(step), encoding="utf-8")
                time.sleep(0.3)
    end("done")


def bench():
    if words[1] == "kernels":
        print("fill f32  1.0 GB/s  90 %", flush=True)
        end("error: cuBLASLt refused" if "kernels" in faults else "", code="kernels" in faults)
    graphs = "--cuda-graph-impl" in words
    less = "--exp-avg-dtype" in words
    if "too large" in faults and not less and not graphs:
        end("09:00:00 error the device has no memory left: out of memory", code=1)
    falls = 1 if "rises" in faults else -1
    with open(value("--log-jsonl"), "a", encoding="utf-8") as log:
        for step in range(1, 4):
            loss = 9 + falls * step + (1e-7 if "graphs" in faults and graphs else 0)
            record = {"iteration": step, "loss": loss, "gradient_norm": 1}
            record |= {"seconds": 0.5, "tokens_per_second": 64.0}
            log.write(json.dumps({"type": "step", **record}) + "\n")
    if "memory midway" in faults:
        end("09:00:00 error the device has no memory left: out of memory", code=1)
    rate = 20 if "--allow-nondeterministic" in words else 10
    print(
        f"{rate} tokens/s, 3% MFU",
        "computed by: attention cuDNN (64 of 64 calls)",
        sep="\n",
        flush=True,
    )
    if "hangs after figures" in faults:
        time.sleep(60)
    end("clocks: 1980 MHz", code=3 if "bad end" in faults else 0)


if words[0] == "selftest":
    selftest()
elif words[0] == "train":
    train()
elif words[0] == "bench":
    bench()
elif words[0] == "plan":
    print("09:00:00 info {a line of the log}")
    fits = "too large" not in faults
    gpu = {"bytes": 1e9, "needed": 2e9}
    end(json.dumps({"memory": {"fits": fits, "gpu": gpu, "cause": "8B parameters"}}, indent=2))
elif words[0] == "preprocess":
    end("error: no tokenizer", code="no text" in faults)
elif words[0] == "verify":
    worst = "  logits  1 compared, worst error 1.9e-06 of 1.0e-04 allowed (logits)"
    end(
        worst,
        "1 passed, 0 failed" if "verify" not in faults else "0 passed, 1 failed",
        code="verify" in faults,
    )
