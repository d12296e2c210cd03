#!/usr/bin/env python3
"""The training step of `megatron bench step` of BERT base or T5 base against the same step in PyTorch on this CPU.

    bert  masked language modelling and next sentences: 512 tokens, of which 15% are predicted (--task mlm)
    t5    span corruption: the encoder reads 512 tokens, the decoder 128 (--task span-corruption)

Micro-batch 4, fused AdamW, gradients clipped at norm 1, no dropout, random tokens. PyTorch computes attention by
scaled_dot_product_attention and the output layer for the tokens that are predicted alone, as megatron does. Its modes
and the turns are those of pytorch_step.py.

    bench/pytorch_encoders.py --model bert|t5 --megatron build/release/megatron [--rounds 3] [--modes fp32,bf16,...]
"""

import math

import pytorch_turns

MODES = ["fp32", "bf16", "bf16-autocast", "bf16-compiled"]
HIDDEN, HEADS, FFN, LAYERS = 768, 12, 3072, 12
DECODER_LENGTH = 128
VOCABULARY = {"bert": 30522, "t5": 32128}
BUCKETS, FAR = 32, 128  # of T5's relative positions


def predicted(a):
    """Labels of a sequence: 15% of its tokens; for T5 these as spans of 3, each behind a sentinel, and the end."""
    return 3 * a.seq_length // 20 if a.model == "bert" else 4 * (a.seq_length // 20) + 1


def split_heads(x):
    b, s, _ = x.shape
    return x.view(b, s, HEADS, -1).transpose(1, 2)


def build_bert(torch, a):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, 1e-12), nn.LayerNorm(HIDDEN, 1e-12)
            self.qkv, self.out = nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(HIDDEN, HIDDEN)
            self.up, self.down = nn.Linear(HIDDEN, FFN), nn.Linear(FFN, HIDDEN)

        def forward(self, x):
            q, k, v = (split_heads(t) for t in self.qkv(x).chunk(3, -1))
            y = functional.scaled_dot_product_attention(q, k, v)
            x = self.norm1(x + self.out(y.transpose(1, 2).reshape(x.shape)))
            return self.norm2(x + self.down(functional.gelu(self.up(x))))

    class Bert(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY["bert"], HIDDEN)
            self.positions, self.types = nn.Embedding(a.seq_length, HIDDEN), nn.Embedding(2, HIDDEN)
            self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
            self.norm, self.head_norm = nn.LayerNorm(HIDDEN, 1e-12), nn.LayerNorm(HIDDEN, 1e-12)
            self.pooler, self.next_sentence = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)
            self.head, self.bias = nn.Linear(HIDDEN, HIDDEN), nn.Parameter(torch.zeros(VOCABULARY["bert"]))
            pytorch_turns.draw_weights(torch, self)

        def forward(self, ids, types, places, labels, is_next):
            x = self.norm(self.tokens(ids) + self.positions.weight + self.types(types))
            for layer in self.layers:
                x = layer(x)
            follows = self.next_sentence(torch.tanh(self.pooler(x[:, 0])))
            y = x.reshape(-1, HIDDEN)[places]
            y = self.head_norm(functional.gelu(self.head(y)))
            logits = functional.linear(y, self.tokens.weight, self.bias)  # tied
            loss = functional.cross_entropy(logits.float(), labels)
            return loss + functional.cross_entropy(follows.float(), is_next), loss

    def draw():
        count = predicted(a)
        ids = torch.randint(VOCABULARY["bert"], (a.micro_batch_size, a.seq_length))
        types = (torch.arange(a.seq_length) >= a.seq_length // 2).long().expand(ids.shape)
        rows = [torch.randperm(a.seq_length)[:count].sort().values + a.seq_length * b
                for b in range(a.micro_batch_size)]
        places = torch.cat(rows)
        return ids, types, places, torch.randint(VOCABULARY["bert"], places.shape), torch.randint(2, ids.shape[:1])

    return Bert(), draw


def build_t5(torch, a):
    nn, functional = torch.nn, torch.nn.functional

    def buckets(length, two_sided):
        """Bucket of each distance between key and query, as T5 counts them."""
        distance = torch.arange(length)[None, :] - torch.arange(length)[:, None]
        count = BUCKETS // 2 if two_sided else BUCKETS
        first = (distance > 0).long() * count if two_sided else torch.zeros_like(distance)
        distance = distance.abs() if two_sided else -distance.clamp(max=0)
        exact = count // 2
        far = exact + (torch.log(distance.clamp(min=1) / exact) / math.log(FAR / exact) * (count - exact)).long()
        return first + torch.where(distance < exact, distance, far.clamp(max=count - 1))

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))

        def forward(self, x, memory, bias):
            q, k, v = split_heads(self.q(x)), split_heads(self.k(memory)), split_heads(self.v(memory))
            y = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
            return self.out(y.transpose(1, 2).reshape(x.shape))

    class Layer(nn.Module):
        def __init__(self, decodes):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(HIDDEN, 1e-6), nn.RMSNorm(HIDDEN, 1e-6)
            self.attention = Attention()
            if decodes:
                self.cross_norm, self.cross = nn.RMSNorm(HIDDEN, 1e-6), Attention()
            self.up, self.down = nn.Linear(HIDDEN, FFN, bias=False), nn.Linear(FFN, HIDDEN, bias=False)

        def forward(self, x, bias, memory=None):
            y = self.norm1(x)
            x = x + self.attention(y, y, bias)
            if memory is not None:
                x = x + self.cross(self.cross_norm(x), memory, None)
            return x + self.down(functional.relu(self.up(self.norm2(x))))

    class Stack(nn.Module):
        def __init__(self, decodes, length):
            super().__init__()
            self.layers = nn.ModuleList(Layer(decodes) for _ in range(LAYERS))
            self.bias, self.norm = nn.Embedding(BUCKETS, HEADS), nn.RMSNorm(HIDDEN, 1e-6)
            self.register_buffer("buckets", buckets(length, not decodes))
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            self.register_buffer("later", later if decodes else torch.zeros_like(later))

        def forward(self, x, memory=None):
            bias = self.bias(self.buckets).permute(2, 0, 1)[None].masked_fill(self.later, float("-inf")).to(x.dtype)
            for layer in self.layers:
                x = layer(x, bias, memory)
            return self.norm(x)

    class T5(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(VOCABULARY["t5"], HIDDEN)
            self.encoder, self.decoder = Stack(False, a.seq_length), Stack(True, DECODER_LENGTH)
            pytorch_turns.draw_weights(torch, self)

        def forward(self, encoder_ids, decoder_ids, labels):
            y = self.decoder(self.tokens(decoder_ids), self.encoder(self.tokens(encoder_ids)))
            y = y[:, : labels.shape[1]] * HIDDEN**-0.5
            logits = functional.linear(y, self.tokens.weight)  # tied
            loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
            return loss, loss

    def draw():
        lengths = a.seq_length, DECODER_LENGTH, predicted(a)
        return [torch.randint(VOCABULARY["t5"], (a.micro_batch_size, length)) for length in lengths]

    return T5(), draw


BUILD = {"bert": build_bert, "t5": build_t5}
FLAGS = {
    "bert": ["--task", "mlm", "--model-config", "bert_base"],
    "t5": ["--task", "span-corruption", "--model-config", "t5_base", "--decoder-seq-length", str(DECODER_LENGTH)],
}


def pytorch_steps(a, mode):
    import torch

    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model, draw = BUILD[a.model](torch, a)
    if mode in ("bf16", "bf16-compiled"):
        model = model.to(torch.bfloat16)
    run = torch.compile(model) if mode == "bf16-compiled" else model

    def step_loss(*inputs):
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16-autocast"):
            return run(*inputs)

    pytorch_turns.time_steps(torch, a, model, draw, step_loss)


def main():
    parser = pytorch_turns.parser(__doc__, MODES)
    parser.set_defaults(seq_length=512)
    parser.add_argument("--model", choices=list(BUILD), required=True)
    a = parser.parse_args()
    pytorch_turns.compare(a, MODES, pytorch_steps, FLAGS[a.model])


if __name__ == "__main__":
    main()
