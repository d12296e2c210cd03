"""The folder of results, which may become full or read-only while checks run."""

import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

from gpu_checks.machine import Unusable


def say(text):
    """Prints to standard output, whose reader may be gone."""
    try:
        print(text, flush=True)
    except (OSError, ValueError):
        pass


class Output:
    """Writes files of a folder. If the folder becomes unwritable, moves to a temporary one, prints
    its name and copies the earlier files; if that fails too, only standard output remains."""

    def __init__(self, folder):
        self.folder, self.lock = Path(folder), threading.RLock()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder) as probe:
                probe.write(b"x" * 4096)
        except OSError as error:
            raise Unusable(
                f"results cannot be written to {self.folder}: {error.strerror}; --output names "
                "another folder"
            ) from error

    def path(self, name):
        return self.folder / name if self.folder else Path(os.devnull)

    def size_of(self, name):
        try:
            return self.path(name).stat().st_size
        except OSError:
            return 0

    def append(self, name, text):
        def write():
            with self.path(name).open("a", encoding="utf-8", errors="replace") as out:
                out.write(text)

        self.attempt(write)

    def replace(self, name, text):
        """Replaces a file atomically: readers see the old or the new content."""

        def write():
            temporary = self.path(name + ".new")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(self.path(name))

        self.attempt(write)

    def attempt(self, write):
        with self.lock:
            while self.folder:
                try:
                    return write()
                except OSError as error:
                    self.leave(error)

    def leave(self, error):
        former, self.folder = self.folder, None
        say(f"{former} can no longer be written ({error.strerror}).")
        if former.name.startswith("gpu_check.results."):
            say("Results go to standard output only from here on.")
            return
        try:
            folder = Path(tempfile.mkdtemp(prefix="gpu_check.results."))
        except OSError as another:
            say(f"Nor can a temporary folder ({another.strerror}): only standard output is left.")
            return
        self.folder = folder
        try:
            names = [n for n in former.glob("*") if n.is_file()]
        except OSError:
            return  # the existing files cannot even be listed
        for name in names:
            try:
                shutil.copy(name, folder)
            except OSError:
                pass  # it stays where it is
        say(f"Results continue in {folder}.")


def write_utf8():
    """No character ends the check, whatever the locale is."""
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")
