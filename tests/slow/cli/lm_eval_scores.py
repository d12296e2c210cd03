"""lm_eval_scores.py URL TOKENIZER SAMPLES FOLDER POSITIONS RUN...

Evaluates the tasks in SAMPLES with lm-evaluation-harness against a server, and compares the log-likelihood, text and
score of every example, and the scores and standard errors of every task, with those of `megatron eval --tasks`. A RUN
is SHOTS:FILE: few-shot examples of each, and where --output and --json have written FILE.jsonl and FILE.json. Prints
"all equal", or what is not. FOLDER: for files of this script.
"""

import json
import math
import os
import sys
from pathlib import Path

os.environ["HF_DATASETS_OFFLINE"] = os.environ["HF_HUB_OFFLINE"] = "1"
import lm_eval  # noqa: E402
import lm_eval.tasks.hellaswag.utils as hellaswag  # noqa: E402

URL, TOKENIZER, SAMPLES, FOLDER, POSITIONS = sys.argv[1:6]
TASKS = Path(lm_eval.__file__).parent / "tasks"
os.environ["HF_HOME"] = FOLDER


def lines(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def task(name, yaml, data, **more):
    """A task file that includes the harness's own, with local data."""
    config = {
        "include": str(TASKS / yaml),
        "task": name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "training_split": None,
        "validation_split": None,
        "test_split": "test",
        "fewshot_split": "test",
        **more,
    }
    path = Path(FOLDER) / (name + ".yaml")
    path.write_text(json.dumps(config))


def write_tasks():
    """The names of all tasks, and for each the examples that our results have."""
    samples = Path(SAMPLES)
    task("lambada", "lambada/lambada_openai.yaml", samples / "lambada.jsonl")
    task("gsm8k", "gsm8k/gsm8k.yaml", samples / "gsm8k.jsonl")
    data = Path(FOLDER) / "hellaswag.jsonl"
    rows = hellaswag.process_docs(Rows(lines(samples / "hellaswag.jsonl")))
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    by_length = [
        {"metric": metric, "aggregation": "mean", "higher_is_better": True}
        for metric in ("acc", "acc_norm", "acc_bytes")
    ]
    task(
        "hellaswag",
        "hellaswag/hellaswag.yaml",
        data,
        process_docs=None,
        doc_to_target="{{gold}}",
        metric_list=by_length,
    )
    subjects = {}
    for number, row in enumerate(lines(samples / "mmlu.jsonl")):
        subjects.setdefault(row["subject"], []).append((number, row))
    names = {name: None for name in ("lambada", "gsm8k", "hellaswag")}
    for name, yaml, sample, more in (
        ("arc_easy", "arc/arc_easy", "arc_easy", {"metric_list": by_length}),
        ("piqa", "piqa/piqa", "piqa", {"metric_list": by_length}),
        ("winogrande", "winogrande/default", "winogrande", {}),
        ("boolq", "super_glue/boolq/default", "boolq", {"metric_list": by_length}),
        ("truthfulqa_mc1", "truthfulqa/truthfulqa_mc1", "truthfulqa", {"metric_list": by_length}),
        ("truthfulqa_mc2", "truthfulqa/truthfulqa_mc2", "truthfulqa", {}),
    ):
        task(name, yaml + ".yaml", samples / (sample + ".jsonl"), **more)
        names[name] = None
    for subject, rows in subjects.items():
        data = Path(FOLDER) / (subject + ".jsonl")
        data.write_text("".join(json.dumps(row) + "\n" for _, row in rows))
        about = subject.replace("_", " ")
        task(
            "mmlu_" + subject,
            "mmlu/default/_default_template_yaml",
            data,
            metric_list=by_length,
            description="The following are multiple choice questions (with answers) about "
            f"{about}.\n\n",
        )
        names["mmlu_" + subject] = [number for number, _ in rows]
    return names


class Rows(list):
    def map(self, function):
        return [function(row) for row in self]


class Comparison:
    def __init__(self):
        self.differences = []
        self.numbers = 0

    def equal(self, what, ours, theirs, tolerance=0.0):
        self.numbers += 1
        same = ours == theirs
        if isinstance(ours, float) and isinstance(theirs, float):
            same = math.isclose(ours, theirs, rel_tol=tolerance, abs_tol=0)
        if not same:
            self.differences.append(f"{what}: {ours} here, {theirs} of lm_eval")

    def example(self, name, ours, sample):
        where = f"{name} example {ours['example']}"
        if "text" in ours:
            self.equal(where + " text", ours["text"], sample["resps"][0][0])
            self.equal(
                where + " " + sample["filter"],
                ours["extracted"][sample["filter"]],
                sample["filtered_resps"][0],
            )
            key = "exact_match," + sample["filter"]
            self.equal(where + " " + key, ours["metrics"][key], float(sample["exact_match"]))
            return
        pairs = [response[0] for response in sample["resps"]]
        values = [float(value) for value, _ in pairs]
        self.equal(where, ours.get("loglikelihoods", [ours.get("loglikelihood")]), values)
        if "is_greedy" in ours:
            self.equal(where + " is_greedy", ours["is_greedy"], pairs[0][1] in (True, "True"))
        for metric, value in ours["metrics"].items():
            tolerance = 1e-12 if "labels" in ours else 0.0  # a share, whose sum has another order
            self.equal(f"{where} {metric}", value, float(sample[metric]), tolerance)

    def task(self, name, ours, theirs):
        """theirs: scores by "metric,filter"."""
        for key, value in theirs.items():
            metric, _, rest = key.partition(",")
            if metric in ("alias", "name", "sample_len") or not isinstance(value, (int, float)):
                continue
            is_error = metric.endswith("_stderr")
            metric = metric.removesuffix("_stderr") + ("" if rest == "none" else "," + rest)
            mine = ours[metric + ("_stderr" if is_error else "")]
            self.equal(f"{name} {key}", float(mine), float(value), 1e-12)


def evaluate(names, shots):
    manager = lm_eval.tasks.TaskManager(include_path=FOLDER, include_defaults=False)
    return lm_eval.simple_evaluate(
        model="local-completions",
        model_args={
            "model": "served",
            "base_url": URL + "/v1/completions",
            "tokenizer": TOKENIZER,
            "tokenizer_backend": "huggingface",
            "num_concurrent": 4,
            "max_length": int(POSITIONS) + 1,
        },
        tasks=list(names),
        num_fewshot=shots,
        log_samples=True,
        task_manager=manager,
    )


def main():
    comparison = Comparison()
    names = write_tasks()
    for run in sys.argv[6:]:
        shots, file = run.split(":", 1)
        theirs = evaluate(names, int(shots))
        ours = {}
        for line in lines(file + ".jsonl"):
            ours.setdefault(line["task"], []).append(line)
        scores = json.loads(Path(file + ".json").read_text())["tasks"]
        for name, numbers in names.items():
            mine = ours["mmlu" if numbers else name]
            for sample in theirs["samples"][name]:
                number = numbers[sample["doc_id"]] if numbers else sample["doc_id"]
                comparison.example(f"{shots}-shot {name}", mine[number], sample)
            if not numbers:
                comparison.task(f"{shots}-shot {name}", scores[name], theirs["results"][name])
        for index, metric in enumerate(("acc", "acc_norm", "acc_bytes")):
            of = [lm_eval_samples(theirs, name, metric) for name in names if names[name]]
            pooled = sum(sum(values) for values in of) / sum(len(values) for values in of)
            comparison.equal(f"{shots}-shot mmlu {metric}", scores["mmlu"][metric], pooled, 1e-12)
    print("\n".join(comparison.differences) or f"all equal: {comparison.numbers} numbers and texts")


def lm_eval_samples(theirs, task_name, metric):
    return [float(sample[metric]) for sample in theirs["samples"][task_name]]


main()
