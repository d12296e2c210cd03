"""The commands of docs/fine_tuning.md run as they are written, one section after the other, on the model of ./quickstart.

    test_fine_tuning.py MEGATRON

Only their sizes are smaller: rows have the length of the model, and runs of more than 20 steps have 20. Commands with
`...` are not run.
"""

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from pathlib import Path

import test_commands

ROOT = test_commands.ROOT
PAGE = ROOT / "docs/fine_tuning.md"
PROGRAM = ""
SECONDS = 300  # that a command may take
STEPS, LENGTH = 20, 256

TEMPLATE = """{% for message in messages %}<{{ message.role }}>
{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}
{% else %}{{ message.content }}
{% endif %}{% endfor %}{% if add_generation_prompt %}<assistant>
{% endif %}"""


def recipe():
    """Returns the flags of the quickstart's model and of its runs of STEPS steps, and its vocabulary."""
    text = (ROOT / "quickstart").read_text(encoding="utf-8").split("# ---- the recipe", 1)[1]
    lines = text.split("\n", 1)[1].split("\n# -----", 1)[0]
    script = f'{lines}\necho "${{model_flags[@]}}"; training_flags {STEPS}; echo "$vocabulary"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    model, training, vocabulary = done.stdout.splitlines()
    return model.split() + training.split(), vocabulary


def sections():
    """Returns the page's sections with their commands, in their order."""
    found = []
    for text in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as page:
            page.write(text)
            page.flush()
            commands = list(test_commands.commands_of(Path(page.name)))
        found.append((text.splitlines()[0], [c for c in commands if "..." not in c]))
    return [(title, commands) for title, commands in found if commands]


def smaller(words):
    """Returns a command's words with the sizes of this test."""
    words = list(words)
    for flag, most in (("--seq-length", LENGTH), ("--train-iters", STEPS)):
        if flag in words:
            at = words.index(flag) + 1
            words[at] = str(min(int(words[at]), most))
    return words


def write(path, records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


class FineTuning(unittest.TestCase):
    def run_words(self, words, folder):
        done = subprocess.run(
            words, cwd=folder, capture_output=True, text=True, errors="replace", timeout=SECONDS, check=False
        )
        self.assertEqual(done.returncode, 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        return done

    def make_base(self, folder):
        """Trains the quickstart's model for some steps, on the pages of docs/."""
        flags, vocabulary = recipe()
        texts = [{"text": page.read_text(encoding="utf-8")} for page in sorted(ROOT.glob("docs/*.md"))]
        write(folder / "text.jsonl", texts)
        tokenizer = ["tokenizer", "train", "--input", "text.jsonl", "--vocab-size", vocabulary, "--output", "tok"]
        self.run_words([PROGRAM, *tokenizer], folder)
        tokens = ["preprocess", "--input", "text.jsonl", "--output-prefix", "text", "--tokenizer-model", "tok"]
        self.run_words([PROGRAM, *tokens, "--append-eod"], folder)
        data = ["--data-path", "text_text_document", "--tokenizer-model", "tok", "--split", "9,1,0"]
        self.run_words([PROGRAM, "train", *flags, *data, "--save", "run"], folder)
        model = folder / f"run/iter_{STEPS:07}"
        (model / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
        return model

    def write_examples(self, folder):
        def chat(i):
            answer = {"role": "assistant", "content": f"the word of line {i % 7}"}
            return {"messages": [{"role": "user", "content": f"line {i}"}, answer]}

        def pair(i):
            return {"prompt": f"line {i}", "chosen": f" good {i}", "rejected": f" bad {i}"}

        write(folder / "chats.jsonl", [chat(i) for i in range(400)])
        write(folder / "pairs.jsonl", [pair(i) for i in range(200)])
        write(folder / "texts.jsonl", [{"text": f"line {i}", "label": "odd" if i % 2 else "even"} for i in range(200)])
        write(folder / "old_domain.jsonl", [{"text": "the flags of a run"}, {"text": "a page of the manual"}])
        write(folder / "new_domain.jsonl", [{"text": f"line {i}\nthe word of line {i % 7}"} for i in range(3)])

    def serve(self, words, folder):
        """Starts a server, asks each of its models, and ends it."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        with subprocess.Popen(
            [*words, "--port", str(port)], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as server:
            try:
                address = f"http://127.0.0.1:{port}/v1/"
                models = None
                for _ in range(SECONDS):
                    try:
                        models = json.load(urllib.request.urlopen(address + "models"))["data"]
                        break
                    except OSError:
                        self.assertIsNone(server.poll(), "the server has ended")
                        time.sleep(1)
                for model in models:
                    body = {"model": model["id"], "messages": [{"role": "user", "content": "line 3"}], "max_tokens": 8}
                    request = urllib.request.Request(
                        address + "chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
                    )
                    answer = json.load(urllib.request.urlopen(request))
                    self.assertEqual(answer["choices"][0]["message"]["role"], "assistant")
            finally:
                server.send_signal(signal.SIGTERM)
                output = server.communicate(timeout=SECONDS)[0]
        self.assertIn("listening" if "listening" in output else "http", output)
        return [model["id"] for model in models]

    def run_section(self, commands, folder):
        """Runs a section's commands in its folder. A checkpoint that they name by a step is the last one that was saved."""
        for command in commands:
            words = smaller(shlex.split(command.replace("\\\n", " ")))
            words = [self.last(folder, word) if re.search(r"/iter_\d{7}$", word) else word for word in words]
            self.assertEqual(words[0], "megatron", command)
            words[0] = PROGRAM
            if words[1] == "serve":
                self.served[folder.name] = self.serve(words, folder)
                continue
            done = self.run_words(words, folder)
            self.outputs[folder.name] = self.outputs.get(folder.name, "") + done.stdout

    @staticmethod
    def last(folder, path):
        return str(sorted((folder / path).parent.glob("iter_*"))[-1])

    def losses(self, folder):
        lines = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
        return [r["loss"] for r in map(json.loads, lines) if r["type"] == "step"]

    def test_sections(self):
        self.served, self.outputs = {}, {}
        with tempfile.TemporaryDirectory() as name:
            top = Path(name)
            base = self.make_base(top)
            names = []
            for title, commands in sections():
                folder = top / re.match(r"\w+", title)[0].lower()
                names.append(folder.name)
                folder.mkdir()
                self.write_examples(folder)
                # What is merged is an adapter; elsewhere, runs begin with the base model.
                adapter = top / "adapters/ADAPTER"
                start = Path(self.last(adapter, "iter_0000000")) if folder.name == "merging" else base
                (folder / "DIR").symlink_to(start)
                self.run_section(commands, folder)
            self.assertEqual(names, ["chats", "preferences", "rewards", "classifiers", "adapters", "merging"])
            self.assertTrue((top / "merging/OUT/model.safetensors").exists())
            losses = self.losses(top / "chats/OUT")
            self.assertLess(losses[-1], losses[0])
            self.assertEqual(len(self.served["chats"]), 1)
            self.assertEqual(self.served["adapters"][1:], ["chats", "preferred"])
            self.assertIn("[[the word of line 0", self.outputs["chats"])
            self.assertIn("old_domain.jsonl", self.outputs["chats"])


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
