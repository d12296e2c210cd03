#!/usr/bin/env python3
"""The training step of `megatron bench step --preset moe-300m` against the same step in PyTorch on this CPU.

12 layers of 64 experts, of which each token takes 8: the softmax of fp32 logits over all experts, then the 8 highest;
auxiliary loss 0.01, fused AdamW, gradients clipped at norm 1, random tokens. PyTorch computes the experts
  loop     one after another, each on the tokens that chose it (index_select, index_add)
  grouped  by torch._grouped_mm, of rows in the order of experts (left out where this PyTorch has none for the CPU)
  padded   by torch.bmm, of as many rows for every expert as the fullest one has
in fp32 and with parameters and AdamW's moments in bf16. PyTorch and megatron take turns, round by round, each in a
process of its own; figures are tokens/s of the median step, the first of each process left out. --instruction-set as in
pytorch_step.py.

    bench/pytorch_moe.py --megatron build/release/megatron [--rounds 3] [--steps 3] [--modes fp32-loop,...]
"""

import pytorch_turns

MODES = [f"{kind}-{way}" for kind in ("fp32", "bf16") for way in ("loop", "grouped", "padded")]
HIDDEN, HEADS, KV_HEADS, VOCABULARY = 768, 12, 4, 32000
EXPERTS, CHOICES, FFN = 64, 8, 128
AUX_LOSS = 0.01


def build(torch, a, way):
    nn, functional = torch.nn, torch.nn.functional

    def weights(*shape):
        return nn.Parameter(torch.empty(shape).normal_(std=0.02))

    def swiglu(x):
        gate, up = x.chunk(2, -1)
        return functional.silu(gate) * up

    def rotated(x, cos, sin):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.width = HIDDEN // HEADS
            self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * self.width, bias=False)
            self.out = nn.Linear(HIDDEN, HIDDEN, bias=False)

        def forward(self, x, cos, sin):
            b, s, _ = x.shape
            heads = self.qkv(x).view(b, s, -1, self.width).transpose(1, 2)
            q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), 1)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            k, v = (t.repeat_interleave(HEADS // KV_HEADS, 1) for t in (k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.out(y.transpose(1, 2).reshape(b, s, HIDDEN))

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router = weights(EXPERTS, HIDDEN)
            self.up = weights(EXPERTS, 2 * FFN, HIDDEN)
            self.down = weights(EXPERTS, HIDDEN, FFN)

        def forward(self, x):
            b, s, _ = x.shape
            x = x.view(b * s, HIDDEN)
            p = functional.linear(x.float(), self.router.float()).softmax(-1)
            factors, chosen = p.topk(CHOICES)
            counts = torch.bincount(chosen.view(-1), minlength=EXPERTS)
            aux_loss = EXPERTS / chosen.numel() * (counts * p.mean(0)).sum()
            rows = chosen.view(-1).argsort(stable=True)  # by expert: token * CHOICES + choice
            y = ways[way](self, x, factors.to(x.dtype).view(-1, 1), rows, counts)
            return y.view(b, s, HIDDEN), aux_loss

    def loop(experts, x, factors, rows, counts):
        y = torch.zeros_like(x)
        each = zip(rows.split(counts.tolist()), experts.up.unbind(), experts.down.unbind())
        for some, up, down in each:
            if len(some) == 0:
                continue
            token = some // CHOICES
            inner = swiglu(functional.linear(x.index_select(0, token), up))
            y.index_add_(0, token, functional.linear(inner, down) * factors.index_select(0, some))
        return y

    def in_token_order(y, factors, rows):
        """Sums of the choices of each token."""
        inverse = torch.empty_like(rows)
        inverse[rows] = torch.arange(len(rows))
        return (y.index_select(0, inverse) * factors).view(-1, CHOICES, HIDDEN).sum(1)

    def grouped(experts, x, factors, rows, counts):
        ends = counts.cumsum(0).to(torch.int32)
        inner = swiglu(torch._grouped_mm(x.index_select(0, rows // CHOICES), experts.up.transpose(1, 2), offs=ends))
        return in_token_order(torch._grouped_mm(inner, experts.down.transpose(1, 2), offs=ends), factors, rows)

    def padded(experts, x, factors, rows, counts):
        most = int(counts.max())
        begins = counts.cumsum(0) - counts
        expert = torch.repeat_interleave(torch.arange(EXPERTS), counts)
        place = expert * most + torch.arange(len(rows)) - begins[expert]
        wide = x.new_zeros(EXPERTS * most, HIDDEN).index_copy(0, place, x.index_select(0, rows // CHOICES))
        inner = swiglu(torch.bmm(wide.view(EXPERTS, most, HIDDEN), experts.up.transpose(1, 2)))
        y = torch.bmm(inner, experts.down.transpose(1, 2)).view(-1, HIDDEN)
        return in_token_order(y.index_select(0, place), factors, rows)

    ways = {"loop": loop, "grouped": grouped, "padded": padded}

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, 1e-5), nn.RMSNorm(HIDDEN, 1e-5)
            self.attention, self.experts = Attention(), Experts()

        def forward(self, x, cos, sin):
            x = x + self.attention(self.norm1(x), cos, sin)
            y, aux_loss = self.experts(self.norm2(x))
            return x + y, aux_loss

    class Decoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(a.num_layers))
            self.norm = nn.RMSNorm(HIDDEN, 1e-5)
            self.output = nn.Linear(HIDDEN, VOCABULARY, bias=False)
            width = HIDDEN // HEADS
            angles = torch.outer(torch.arange(a.seq_length), 10000.0 ** (-torch.arange(0, width, 2) / width))
            self.register_buffer("cos", angles.cos().repeat(1, 2))
            self.register_buffer("sin", angles.sin().repeat(1, 2))
            pytorch_turns.draw_weights(torch, self)

        def forward(self, ids, labels):
            x, aux_losses = self.tokens(ids), 0
            for layer in self.layers:
                x, aux_loss = layer(x, self.cos, self.sin)
                aux_losses = aux_losses + aux_loss
            logits = self.output(self.norm(x)).view(-1, VOCABULARY).float()
            loss = functional.cross_entropy(logits, labels.view(-1))
            return loss + AUX_LOSS * aux_losses, loss

    return Decoder()


def pytorch_steps(a, mode):
    import torch

    kind, way = mode.split("-")
    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = build(torch, a, way)
    if kind == "bf16":
        model = model.to(torch.bfloat16)
    pytorch_turns.time_steps(torch, a, model, lambda: pytorch_turns.draw_ids(torch, a, VOCABULARY), model)


def main():
    parser = pytorch_turns.parser(__doc__, MODES)
    parser.add_argument("--num-layers", type=int, default=12)
    a = parser.parse_args()
    pytorch_turns.compare(a, MODES, pytorch_steps, ["--preset", "moe-300m"] + pytorch_turns.flags_of(a, "num_layers"))


if __name__ == "__main__":
    main()
