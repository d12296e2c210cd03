#!/usr/bin/env python3
"""The training step of `megatron bench step` against the same step in PyTorch on this CPU.

GPT-2 124M, sequence 1024, micro-batch 4, fused AdamW, gradients clipped at norm 1, no dropout, random tokens. PyTorch
runs in fp32, in bf16 (parameters and AdamW's moments in bf16: its fastest form), under bf16 autocast with fp32
parameters, and in bf16 with torch.compile. The two take turns, round by round, each in a process of its own; figures
are tokens/s of the median step, the first of each process left out. With --instruction-set avx2 both keep to AVX2
(ATEN_CPU_CAPABILITY, ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS hold PyTorch and its libraries to it).

    bench/pytorch_step.py --megatron build/release/megatron [--rounds 3] [--steps 3] [--modes fp32,bf16,...]
"""

import pytorch_turns

MODES = ["fp32", "bf16", "bf16-autocast", "bf16-compiled"]


def arguments():
    parser = pytorch_turns.parser(__doc__, MODES)
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--num-attention-heads", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=50257)
    return parser.parse_args()


def build(torch, a):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            h = a.hidden_size
            self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
            self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
            self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

        def forward(self, x):
            b, s, h = x.shape
            heads = self.qkv(self.norm1(x)).view(b, s, 3, a.num_attention_heads, -1)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(a.vocab_size, a.hidden_size)
            self.positions = nn.Embedding(a.seq_length, a.hidden_size)
            self.layers = nn.ModuleList(Layer() for _ in range(a.num_layers))
            self.norm = nn.LayerNorm(a.hidden_size)
            pytorch_turns.draw_weights(torch, self)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.positions.weight
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)  # tied
            return functional.cross_entropy(logits.view(-1, a.vocab_size).float(), labels.view(-1))

    return Gpt2()


def pytorch_steps(a, mode):
    import torch

    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = build(torch, a)
    if mode in ("bf16", "bf16-compiled"):
        model = model.to(torch.bfloat16)
    run = torch.compile(model) if mode == "bf16-compiled" else model

    def step_loss(ids, labels):
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16-autocast"):
            loss = run(ids, labels)
        return loss, loss

    pytorch_turns.time_steps(torch, a, model, lambda: pytorch_turns.draw_ids(torch, a, a.vocab_size), step_loss)


def main():
    a = arguments()
    flags = pytorch_turns.flags_of(a, "num_layers", "hidden_size", "num_attention_heads", "vocab_size")
    pytorch_turns.compare(a, MODES, pytorch_steps, flags)


if __name__ == "__main__":
    main()
