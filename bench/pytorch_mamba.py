#!/usr/bin/env python3
"""The training step of `megatron bench step` of a model with state spaces against the same step of transformers' model
in PyTorch on this CPU, which has no kernels for it: its scan is element-wise PyTorch over chunks, here of 64 tokens as
megatron's are (with its usual 256, intermediate tensors of one layer take 13 GB).

    mamba-130m   Mamba-2 (Dao & Gu 2024): 24 layers of width 768
    hybrid-300m  state spaces, MLPs and attention, as Nemotron-H has them: 29 layers of width 1024

Micro-batch 4, fused AdamW, gradients clipped at norm 1, no dropout, random tokens. The modes and the turns are those of
pytorch_step.py; PyTorch needs transformers.

    bench/pytorch_mamba.py --model mamba-130m|hybrid-300m --megatron build/release/megatron [--rounds 3] [--modes ...]
"""

import pytorch_turns

MODES = ["fp32", "bf16", "bf16-autocast", "bf16-compiled"]
CONFIGS = {
    "mamba-130m": dict(
        model_type="mamba2", num_hidden_layers=24, hidden_size=768, num_heads=24, head_dim=64, n_groups=1,
        state_size=128, vocab_size=50288, tie_word_embeddings=True, chunk_size=64,
    ),
    "hybrid-300m": dict(
        model_type="nemotron_h", hybrid_override_pattern="M-M-M-M*-M-M-M-M*-M-M-M-M*-M-", hidden_size=1024,
        num_attention_heads=16, num_key_value_heads=4, head_dim=64, intermediate_size=4096, mamba_num_heads=32,
        mamba_head_dim=64, n_groups=8, ssm_state_size=128, vocab_size=32000, tie_word_embeddings=False,
        max_position_embeddings=1024, chunk_size=64,
    ),
}


def pytorch_steps(a, mode):
    import torch
    import transformers

    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    transformers.logging.set_verbosity_error()
    config = transformers.AutoConfig.for_model(use_cache=False, **CONFIGS[a.model])
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    pytorch_turns.draw_weights(torch, model)
    if mode in ("bf16", "bf16-compiled"):
        model = model.to(torch.bfloat16)
    run = torch.compile(model) if mode == "bf16-compiled" else model

    def step_loss(ids, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16-autocast"):
            logits = run(input_ids=ids).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return loss, loss

    pytorch_turns.time_steps(torch, a, model, lambda: pytorch_turns.draw_ids(torch, a, config.vocab_size), step_loss)


def main():
    parser = pytorch_turns.parser(__doc__, MODES)
    parser.add_argument("--model", choices=list(CONFIGS), required=True)
    a = parser.parse_args()
    pytorch_turns.compare(a, MODES, pytorch_steps, ["--preset", a.model])


if __name__ == "__main__":
    main()
