#!/usr/bin/env python3
"""Steps of `megatron sft` and `megatron dpo` against the same steps of TRL and PEFT on this CPU.

The model has the shape of the preset llama-160m and random weights, which the script writes with a tokenizer of bytes
and data to a folder. `sft` trains all weights on four chats of 1024 tokens, three quarters of which carry loss; `lora`
does so with adapters of rank 16 on every matrix; `dpo` trains all weights on four pairs of completions of 512 tokens,
against a reference model that runs in each step. All steps have the same batch, so that the first losses are
comparable; nothing is padded, dropped out or recomputed; AdamW without weight decay, gradients clipped at norm 1. TRL
runs in fp32, in bf16 (parameters and AdamW's moments in bf16), and under bf16 autocast with fp32 parameters; its
losses are computed in chunks of tokens. The two take turns, round by round, each in a process of its own; figures are
tokens/s of the median step, the first of each process left out.

    PYTHONPATH=FOLDER_OF_TRL bench/trl_fine_tuning.py --megatron build/release/megatron [--rounds 3] [--steps 3]
        [--modes lora.fp32,lora.bf16,...]
"""

import importlib.util
import json
import os
import random
import statistics
import string
import subprocess
import sys
import tempfile
import time

import pytorch_turns

METHODS = ["lora", "sft", "dpo"]
MODES = [f"{method}.{kind}" for method in METHODS for kind in ("fp32", "bf16", "bf16-autocast")]
RANK, ALPHA, RATE = 16, 32, 1e-5


def arguments():
    parser = pytorch_turns.parser(__doc__, MODES)
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--ffn-hidden-size", type=int, default=3072)
    parser.add_argument("--num-attention-heads", type=int, default=12)
    parser.add_argument("--num-query-groups", type=int, default=4)
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--folder", help="where model and data are written; default a temporary one")
    return parser.parse_args()


def write_model(a):
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(1)
    transformers.utils.logging.disable_progress_bar()
    config = transformers.LlamaConfig(
        vocab_size=a.vocab_size, hidden_size=a.hidden_size, intermediate_size=a.ffn_hidden_size,
        num_hidden_layers=a.num_layers, num_attention_heads=a.num_attention_heads,
        num_key_value_heads=a.num_query_groups, max_position_embeddings=a.seq_length, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=256, pad_token_id=257)
    transformers.LlamaForCausalLM(config).save_pretrained(a.folder + "/model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<end>", "<pad>"])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>",
                                         pad_token="<pad>").save_pretrained(a.folder + "/model")


def write_data(a):
    """Texts of one token for each letter. Both programs put the end token behind completions."""
    draw = random.Random(1)

    def text(length):
        return "".join(draw.choices(string.ascii_letters, k=length))

    def write(name, records):
        with open(f"{a.folder}/{name}.jsonl", "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    rows, length = range(a.micro_batch_size), a.seq_length
    prompt, half = length // 4, length // 2
    write("chats", [{"prompt": text(prompt), "completion": text(length - prompt - 1)} for _ in rows])
    rest = half - half // 4 - 1
    write("pairs", [{"prompt": text(half // 4), "chosen": text(rest), "rejected": text(rest)} for _ in rows])


def data_of(a, method):
    return f"{a.folder}/{'pairs' if method == 'dpo' else 'chats'}.jsonl"


def time_trl(a, mode):
    """Prints the loss of the first step and tokens/s of the others."""
    import datasets
    import peft
    import torch
    import transformers
    import trl

    method, kind = mode.split(".")
    if a.threads:
        torch.set_num_threads(a.threads)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    printed, sys.stdout = sys.stdout, sys.stderr  # trainers print their logs
    seconds = []

    class Timer(transformers.TrainerCallback):
        def on_step_begin(self, *_, **__):
            seconds.append(-time.perf_counter())

        def on_step_end(self, *_, **__):
            seconds[-1] += time.perf_counter()

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(
            a.folder + "/model", dtype=torch.bfloat16 if kind == "bf16" else torch.float32)

    common = {
        "output_dir": f"{a.folder}/{mode}", "per_device_train_batch_size": a.micro_batch_size, "max_steps": a.steps + 1,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "weight_decay": 0.0, "max_grad_norm": 1.0,
        "optim": "adamw_torch_fused", "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True,
        "disable_tqdm": True, "gradient_checkpointing": False, "bf16": kind == "bf16-autocast",
        "max_length": a.seq_length}
    made = {"model": load(), "train_dataset": datasets.load_dataset("json", data_files=data_of(a, method),
                                                                   split="train", cache_dir=a.folder + "/cache"),
            "processing_class": transformers.AutoTokenizer.from_pretrained(a.folder + "/model"), "callbacks": [Timer()]}
    if method == "dpo":
        trainer = trl.DPOTrainer(ref_model=load(), args=trl.DPOConfig(**common), **made)
    else:
        lora = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM")
        trainer = trl.SFTTrainer(args=trl.SFTConfig(**common), peft_config=lora if method == "lora" else None, **made)
    trainer.train()
    sys.stdout = printed
    print(next(entry["loss"] for entry in trainer.state.log_history if "loss" in entry))
    for step in seconds[1:]:
        print(a.micro_batch_size * a.seq_length / step)


def megatron(a, mode):
    method, kind = mode.split(".")
    log = f"{a.folder}/{mode}.log.jsonl"
    if os.path.exists(log):
        os.remove(log)
    command = [a.megatron, "dpo" if method == "dpo" else "sft", "--model", a.folder + "/model", "--data-path",
               data_of(a, method), "--global-batch-size", str(a.micro_batch_size), "--train-iters", str(a.steps + 1),
               "--lr", str(RATE), "--lr-decay-style", "constant", "--weight-decay", "0", "--device", "cpu",
               "--log-interval", "1", "--log-jsonl", log, "--instruction-set", a.instruction_set]
    command += pytorch_turns.flags_of(a, "seq_length", "micro_batch_size")
    command += pytorch_turns.flags_of(a, "threads") if a.threads else []
    if kind == "bf16":
        command.append("--bf16")
    if method == "lora":
        command += ["--lora-rank", str(RANK), "--lora-alpha", str(ALPHA)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    with open(log) as lines:
        steps = [record for record in map(json.loads, lines) if record["type"] == "step"]
    speeds = [step["tokens_per_second"] for step in steps[1:]]
    print(f"megatron {mode}: {statistics.median(speeds):.0f} tokens/s, loss {steps[0]['loss']:.4f} at the first step",
          flush=True)
    return speeds


def main():
    a = arguments()
    missing = [name for name in ("torch", "transformers", "datasets", "peft", "trl")
               if importlib.util.find_spec(name) is None]
    if missing:
        print(f"{', '.join(missing)} not installed for {sys.executable}: nothing to compare with")
        return
    if a.only:
        time_trl(a, a.only)
        return
    modes = pytorch_turns.chosen_modes(a, MODES)
    with tempfile.TemporaryDirectory() as temporary:
        if a.folder is None:
            a.folder = temporary
            sys.argv += ["--folder", temporary]  # for the processes of TRL
        write_model(a)
        write_data(a)
        speeds = pytorch_turns.take_turns(a, modes, lambda mode: megatron(a, mode))
    import peft
    import trl

    print(f"TRL {trl.__version__}, PEFT {peft.__version__}; tokens/s, median of all rounds")
    pytorch_turns.print_speeds(speeds)


main()
