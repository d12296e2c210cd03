#!/usr/bin/env python3
"""Writes logits.jsonl and cases.jsonl: what transformers' logits processors make of random logits.

    pip install transformers==5.23.0 torch==2.15.0
    python make.py

transformers makes the list of processors, and so their order, from a GenerationConfig. Presence and
frequency penalties, which it lacks, are a custom processor. All is computed in fp64.
"""

import json
import random

import torch
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, LogitsProcessor

VOCABULARIES = [24, 24, 60, 60, 150, 1000]
rng = random.Random(20260117)


class CountPenalties(LogitsProcessor):
    """mu[j] - c[j] * frequency - (c[j] > 0) * presence, where c[j] is the count of token j in the
    generated text."""

    def __init__(self, prompt, presence, frequency):
        self.prompt, self.presence, self.frequency = prompt, presence, frequency

    def __call__(self, input_ids, scores):
        generated = input_ids[0, self.prompt :]
        c = torch.bincount(generated, minlength=scores.shape[-1])[None].to(scores.dtype)
        return scores - c * self.frequency - (c > 0).to(scores.dtype) * self.presence


def random_logits(count):
    spread = rng.choice([1.0, 2.0])
    values = torch.tensor([rng.gauss(0, spread) for _ in range(count)], dtype=torch.float32)
    assert len(set(values.tolist())) == count  # the order of equal values is not defined there
    return values


def some(ids, least, most):
    return sorted(rng.sample(ids, min(len(ids), rng.randint(least, most))))


# By option, as src/inference/sampling.h names them; "allowed" is a list of ids.
CHOICES = {
    "temperature": lambda v: rng.choice([0, 0.3, 0.7, 1.3, 2.5]),
    "top_k": lambda v: rng.choice([1, 3, 5, 10, 20, 100]),
    "top_p": lambda v: round(rng.uniform(0.2, 0.999), 3),
    "min_p": lambda v: round(rng.uniform(0.001, 0.2), 3),
    "repetition_penalty": lambda v: rng.choice([0.5, 1.1, 1.3, 2.0]),
    "presence_penalty": lambda v: rng.choice([-2, -0.5, 0.25, 1, 2]),
    "frequency_penalty": lambda v: rng.choice([-2, -0.5, 0.25, 1, 2]),
    # representable in fp32, the type of transformers' biases
    "logit_bias": lambda v: {str(i): rng.choice([-100, -3.5, -1, 0.25, 2, 5]) for i in some(range(v), 1, 6)},
    "min_tokens": lambda v: rng.randint(1, 6),
    "allowed": lambda v: some(range(v), 3, v // 2),
}


def random_options(vocabulary, only):
    names = [only] if only else [name for name in CHOICES if rng.random() < 0.4]
    return {name: CHOICES[name](vocabulary) for name in names}


def processors(model, case, prompt):
    def given(name, none):
        return case.get(name, none)

    bias = {(int(i),): float(b) for i, b in given("logit_bias", {}).items()}
    temperature = given("temperature", 1)
    config = GenerationConfig(
        num_beams=1,
        do_sample=temperature != 0,
        temperature=float(temperature) or 1.0,
        top_k=given("top_k", 0),
        top_p=float(given("top_p", 1.0)),
        min_p=given("min_p", None),
        repetition_penalty=float(given("repetition_penalty", 1.0)),
        sequence_bias=bias or None,
        min_new_tokens=given("min_tokens", None),
        eos_token_id=case["end_tokens"],
    )
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True)
    allowed = given("allowed", None)
    custom = []
    if "presence_penalty" in case or "frequency_penalty" in case:
        penalties = float(given("presence_penalty", 0)), float(given("frequency_penalty", 0))
        custom = [CountPenalties(prompt, *penalties)]
    return model._get_logits_processor(
        generation_config=config,
        input_ids_seq_length=prompt,
        encoder_input_ids=torch.zeros(1, prompt, dtype=torch.long),
        prefix_allowed_tokens_fn=(lambda batch, ids: allowed) if allowed else None,
        logits_processor=custom,
        device="cpu",
    )


def distribution(model, case, logits):
    """Probabilities of the remaining tokens, by id."""
    prompt = len(case["prompt"])
    ids = torch.tensor([case["prompt"] + case["generated"]])
    scores = processors(model, case, prompt)(ids, logits[None].to(torch.float64))[0]
    if torch.isinf(scores).all():
        return None
    if case.get("temperature", 1) == 0:
        return {int(scores.argmax()): 1.0}
    shares = torch.softmax(scores, -1)
    return {i: shares[i].item() for i in range(len(shares)) if scores[i] != -torch.inf}


def near_a_limit(case, logits, model):
    """True if another rounding would change where top_p or min_p cut."""
    found = distribution(model, case, logits)
    moved = [dict(case, **{n: case[n] * f}) for n in ("top_p", "min_p") if n in case for f in (1 - 1e-9, 1 + 1e-9)]
    return any(distribution(model, m, logits).keys() != found.keys() for m in moved)


def main():
    ids = {"bos_token_id": None, "eos_token_id": None}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, n_positions=8, n_embd=4, n_layer=1, n_head=1, **ids))
    rows = [random_logits(v) for v in VOCABULARIES]
    rows[1][3] = rows[1][17] = -torch.inf
    cases = [(row, name) for name in CHOICES for row in (0, 1, 3)]
    cases += [(rng.choice([0, 0, 1, 1, 2, 3, 4, 5]), None) for _ in range(220)]
    with open("cases.jsonl", "w", encoding="utf-8") as file:
        for row, name in cases:
            vocabulary = VOCABULARIES[row]
            pool = some(range(vocabulary), 6, 12)  # few different tokens, so that they repeat
            case = {"logits": row, **random_options(vocabulary, name)}
            case["prompt"] = rng.choices(pool, k=rng.randint(1, 8))
            case["generated"] = rng.choices(pool, k=rng.randint(0, 8))
            case["end_tokens"] = some(range(vocabulary), 1, 3)
            found = distribution(model, case, rows[row])
            if found is None or near_a_limit(case, rows[row], model):
                continue
            case["ids"], case["probabilities"] = list(found), list(found.values())
            file.write(json.dumps(case) + "\n")
    with open("logits.jsonl", "w", encoding="utf-8") as file:
        for row in rows:  # JSON has no infinities
            file.write(json.dumps([None if v == -torch.inf else v for v in row.tolist()]) + "\n")


if __name__ == "__main__":
    main()
