"""Training steps that `megatron bench step` times on real text, with every figure kept."""

import json
import re
import statistics

from gpu_checks.machine import (
    ROOT,
    Ended,
    Failure,
    NotRun,
    OutOfTime,
    TookTooLong,
    json_in,
    keeping,
    vectors_of,
)
from gpu_checks.runs import losses_of, records_of

SAID = r"step time|tokens/s|estimate: [0-9]|floor|clock|^computed by"
LOGGED = re.compile(r"\d\d:\d\d:\d\d |iteration |training \[")
TEXT_SECONDS = 60
MEMORY = re.compile(r"out of (\w+ )*memory|not fit|ALLOC|rank on a GPU .* has ")


def printed(ran, pattern):
    """Returns the lines with figures."""
    lines = [line.strip() for line in ran.lines() if not LOGGED.match(line.strip())]
    return [line for line in lines if re.search(pattern, line)]


def make_text(machine, small):
    """Pages and sources of this tree in GPT-2's tokens (small: a fixed text)."""
    folder = machine.work / "text"
    prefix = folder / "docs_text_document"
    folder.mkdir(exist_ok=True)
    source = folder / "docs.jsonl"
    if small:
        fixed = vectors_of("indexed") / "preprocess"
        source, tokenizer = fixed / "corpus.jsonl", fixed / "tokenizer_bpe2k"
    else:
        tokenizer = vectors_of("tokenizers") / "real/gpt2"
        patterns = ("*.md", "docs/**/*.md", "src/**/*.h", "src/**/*.cpp")
        pages = [p.read_bytes() for pattern in patterns for p in sorted(ROOT.glob(pattern))]
        lines = [json.dumps({"text": page.decode(errors="replace")}) for page in pages]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["preprocess", "--input", source, "--output-prefix", "docs", "--append-eod"]
    words += ["--tokenizer-model", tokenizer]
    machine.megatron(*words, cwd=folder, limit=TEXT_SECONDS).expect_success()
    return prefix


def text_data(machine, small):
    """Returns (its prefix, ""), or (None, the reason why there is none). Made once."""
    if "text" not in machine.kept:
        try:
            machine.kept["text"] = make_text(machine, small), ""
        except Exception as error:  # pylint: disable=broad-exception-caught
            if isinstance(error, Ended) and machine.seconds_left() <= 0:
                raise
            machine.kept["text"] = None, f"{type(error).__name__}: {error}"
    return machine.kept["text"]


def data_words(machine, small):
    """Flags of the data, and their description in a row."""
    text, why = text_data(machine, small)
    if text:
        return ["--data-path", text, "--split", "1,0,0"], "text"
    return ["--mock-data"], f"mock data (no text: {why})"


def of_log(log):
    """Steps logged by a run that printed no figure."""
    steps = list(records_of(log).values())
    timed = steps[min(5, len(steps) // 5) :]
    if not timed:
        return []
    rate = statistics.median(step["tokens_per_second"] for step in timed)
    seconds = statistics.median(step["seconds"] for step in timed)
    return [f"{rate:.0f} tokens/s, step time {seconds:.3f} s: medians of {len(timed)} logged steps"]


class Measured:
    """One run: its figure, its losses, and the Ended with which it ended, if any."""

    def __init__(self, figure, losses, ended):
        self.figure, self.losses, self.ended = figure, losses, ended


def measure(machine, words, small=False):
    data, kind = data_words(machine, small)
    machine.kept["runs"] = machine.kept.get("runs", 0) + 1
    log = machine.work / f"bench {machine.kept['runs']}.jsonl"
    ran = machine.megatron(*words, *data, "--log-jsonl", log)
    losses, said, ended = losses_of(log), printed(ran, SAID), None
    if not any("tokens/s" in line for line in said):
        said += of_log(log)
    ends = [loss for loss, _ in losses.values()]
    if ends and None not in (ends[0], ends[-1]):
        said.append(f"loss of {kind} {ends[0]:.2f} to {ends[-1]:.2f} in {len(losses)} steps")
    figure = "; ".join(said)
    try:
        ran.expect_success()
        if not figure:
            raise Failure("it printed no figure")
        if not ends or None in ends:
            raise Failure(
                f"{ends.count(None)} of {len(ends)} losses are not finite" if ends else "no loss"
            )
        if not ends[-1] < ends[0]:
            raise Failure(f"the loss did not fall: {ends[0]:.4f} to {ends[-1]:.4f}")
    except Ended as error:
        ended = error
    return Measured(figure, losses, ended)


def expect(measured, figure=None):
    """Returns the figure, or raises the Ended with the figure."""
    figure = measured.figure if figure is None else figure
    if measured.ended:
        raise type(measured.ended)(str(measured.ended), figure)
    return figure


def one_run(machine, words, published="", small=False, instead=()):
    """instead: flags that need less memory, for a second try if the first runs out of memory."""
    note = f"; published: {published}" if published else ""
    first = measure(machine, words, small)
    why = str(first.ended or "")
    if not (instead and MEMORY.search(why) and not first.losses):
        return expect(first, first.figure + note if first.figure else "")
    second = measure(machine, [*words, *instead], small)
    figure = f"with {' '.join(instead)}: {second.figure}{note}"
    if second.ended:
        raise Failure(f"{why}; then {second.ended}", figure if second.figure else "")
    raise Failure(why, figure)


def shortage(machine, words):
    """The reason from `megatron plan` why a run does not fit; empty if it fits or is unknown."""
    flags = [w for w in words[2:] if w != "--no-floor"]
    ran = machine.megatron("plan", *flags, "--mock-data", "--no-time", "--json", limit=60)
    plan = json_in(ran.text, "memory") or {}
    try:
        memory, gpu = plan["memory"], plan["memory"]["gpu"]
        if memory["fits"] is not False:
            return ""
        needed = f"{gpu['needed'] / 1e9:.0f} GB of a GPU's {gpu['bytes'] / 1e9:.0f}"
        return f"megatron plan: it needs {needed}; {memory['cause']}"
    except (KeyError, TypeError):
        return ""


def run_if_it_fits(machine, words, small=False):
    why = shortage(machine, words)
    if why:
        raise NotRun(why)
    return one_run(machine, words, small=small)


def graphs_off_and_on(machine, words, published="", small=False):
    """Both must have the same losses and gradient norms, bit for bit."""
    note = f"; published: {published}" if published else ""
    plain = measure(machine, words, small)
    figure = f"no graphs: {plain.figure or 'none'}{note}"
    if isinstance(plain.ended, (TookTooLong, OutOfTime)):  # no time is left for the other
        raise type(plain.ended)(f"no graphs: {plain.ended}", figure)
    with keeping(figure):
        graphs = measure(machine, [*words, "--cuda-graph-impl", "local"], small)
    figure += f"<br>CUDA graphs: {graphs.figure or 'none'}"
    for measured, what in ((plain, "no graphs"), (graphs, "CUDA graphs")):
        if measured.ended:
            raise type(measured.ended)(f"{what}: {measured.ended}", figure)
    for step in sorted(plain.losses.keys() | graphs.losses.keys()):
        pair = plain.losses.get(step), graphs.losses.get(step)
        if pair[0] != pair[1]:
            why = f"step {step} has {pair[0]} without graphs and {pair[1]} with them"
            raise Failure(why, figure)
    return f"{figure}<br>losses and gradient norms of {len(plain.losses)} steps have the same bits"
