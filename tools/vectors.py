#!/usr/bin/env python3
"""Golden vectors: one archive a set, tests/golden/vectors/NAME.tar.zst, next to NAME/ with its notes (*.md) and scripts (*.py).

    tools/vectors.py                   checks the archives: a note each, their form, 55 MB in all
    tools/vectors.py unpack NAME...    into tests/golden/vectors/NAME, to be looked at or changed
    tools/vectors.py pack NAME...      what lies unpacked there into the archive, and away; what only the archive has stays in it
    tools/vectors.py pack --exact NAME...    and the archive loses what is not there
    tools/vectors.py find NAME         prints the folder that holds the set, unpacked where need be (build/vectors/NAME)

The same content gives the same bytes: entries are sorted, without times and owners. Packing needs the program zstd.
"""

import ctypes
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "vectors"
UNPACKED = ROOT / "build" / "vectors"
ENDING = ".tar.zst"
NOTES = (".md", ".py")
LIMIT = 55 * 10**6
LIBRARIES = ["libzstd.so.1"]  # more may be added


class Wrong(Exception):
    """A fault of a set or an archive, and what to do."""


def names():
    return sorted(p.name[: -len(ENDING)] for p in FOLDER.glob("*" + ENDING))


def archive_of(name):
    path = FOLDER / (name + ENDING)
    if not path.is_file():
        raise Wrong(f"there is no set {name}; the sets are: {' '.join(names()) or 'none'}")
    return path


def files_of(folder):
    """The set's vectors by relative path, without notes and scripts."""
    files = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in NOTES)
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}


def packed(name, files):
    """The archive's bytes before compression."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path, content in sorted(files.items()):
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(content), 0o644
            archive.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


class Buffer(ctypes.Structure):
    """ZSTD_inBuffer and ZSTD_outBuffer."""

    _fields_ = [("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("at", ctypes.c_size_t)]


def library():
    """The zstd library with the types of the functions called."""
    for name in LIBRARIES:
        try:
            zstd = ctypes.CDLL(str(name))
        except OSError:
            continue
        buffers = [ctypes.POINTER(Buffer)] * 2
        zstd.ZSTD_createDCtx.restype = ctypes.c_void_p
        zstd.ZSTD_freeDCtx.argtypes = [ctypes.c_void_p]
        zstd.ZSTD_decompressStream.argtypes = [ctypes.c_void_p, *buffers]
        zstd.ZSTD_decompressStream.restype = ctypes.c_size_t
        zstd.ZSTD_isError.argtypes = [ctypes.c_size_t]
        return zstd
    raise FileNotFoundError(LIBRARIES[0])


def decompressed_by_library(archive):
    zstd, content, pieces = library(), archive.read_bytes(), []
    room = ctypes.create_string_buffer(1 << 20)
    source = Buffer(ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p), len(content), 0)
    context, left = zstd.ZSTD_createDCtx(), 1
    try:
        while left != 0:
            target = Buffer(ctypes.cast(room, ctypes.c_void_p), len(room), 0)
            before = source.at
            left = zstd.ZSTD_decompressStream(context, ctypes.byref(target), ctypes.byref(source))
            pieces.append(room.raw[: target.at])
            if zstd.ZSTD_isError(left) or (left != 0 and (before, 0) == (source.at, target.at)):
                raise Wrong(f"{archive} is damaged: zstd cannot decompress it")
    finally:
        zstd.ZSTD_freeDCtx(context)
    return b"".join(pieces)


def decompressed(archive):
    """The tar file's bytes, decompressed by Python 3.14's own module, the program zstd, or its library."""
    try:
        from compression import zstd
    except ImportError:
        pass
    else:
        return zstd.decompress(archive.read_bytes())
    if not shutil.which("zstd"):
        return decompressed_by_library(archive)
    done = subprocess.run(["zstd", "-dcq", archive], capture_output=True, check=False)
    if done.returncode != 0:
        raise Wrong(f"{archive}: {done.stderr.decode().strip()}")
    return done.stdout


def compressed(content):
    if not shutil.which("zstd"):
        raise Wrong("packing needs the program zstd (apt-get install zstd)")
    command = ["zstd", "-q", "-19", "--single-thread", "-c"]
    return subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True).stdout


def extract(archive, folder):
    """Extracts every file of the archive into the folder, with the tools of this machine."""
    if shutil.which("cmake"):
        command = ["cmake", "-E", "tar", "xf", archive]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    try:
        content = decompressed(archive)
    except FileNotFoundError:
        raise Wrong(
            f"{archive.name} cannot be unpacked here: that needs cmake, zstd, its library or Python 3.14; or unpack it "
            f"elsewhere (tools/vectors.py unpack {archive.name[: -len(ENDING)]}) and bring the folder"
        ) from None
    with tarfile.open(fileobj=io.BytesIO(content)) as entries:
        entries.extractall(folder)


def find(name):
    """The folder with the set's files: in the repository if they are unpacked there, otherwise build/vectors/NAME."""
    folder = FOLDER / name
    if any(p.is_file() and p.suffix not in NOTES for p in folder.rglob("*")):
        return folder
    archive = archive_of(name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    folder, stamp = UNPACKED / name, UNPACKED / (name + ".sha256")
    if folder.is_dir() and stamp.is_file() and stamp.read_text(encoding="utf-8") == digest:
        return folder
    UNPACKED.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=UNPACKED) as work:  # others may be unpacking it at the same time
        extract(archive, work)
        shutil.rmtree(folder, ignore_errors=True)
        try:
            os.rename(Path(work) / name, folder)
        except OSError:
            if not folder.is_dir():
                raise
    stamp.write_text(digest, encoding="utf-8")
    return folder


def content_of(name):
    """The archive's files by their path in the set."""
    with tempfile.TemporaryDirectory() as work:
        extract(archive_of(name), work)
        return files_of(Path(work) / name)


def unpack(name):
    with tempfile.TemporaryDirectory() as work:
        extract(archive_of(name), work)
        shutil.copytree(Path(work) / name, FOLDER / name, dirs_exist_ok=True)
    print(f"tests/golden/vectors/{name}: unpacked")


def pack(name, exact):
    folder, archive = FOLDER / name, FOLDER / (name + ENDING)
    new = files_of(folder)
    if not new:
        raise Wrong(f"no vectors lie in tests/golden/vectors/{name}")
    old = content_of(name) if archive.is_file() else {}
    files = new if exact else {**old, **new}
    if files == old:                             # another zstd may compress differently: equal content keeps its bytes
        print(f"{archive.name}: nothing changed")
    else:
        archive.write_bytes(compressed(packed(name, files)))
        for path in sorted(files.keys() | old.keys()):
            if files.get(path) != old.get(path):
                kind = "added" if path not in old else "changed" if path in files else "removed"
                print(f"{archive.name}: {kind} {path}")
    for path in new:
        (folder / path).unlink()
    for inner in sorted((p for p in folder.rglob("*") if p.is_dir()), reverse=True):
        if not any(inner.iterdir()):
            inner.rmdir()


def faults():
    total = 0
    for name in names():
        archive = archive_of(name)
        total += archive.stat().st_size
        if not any((FOLDER / name).rglob("*.md")):
            yield f"{name} has no note of how it was made (tests/golden/vectors/{name}/README.md)"
        try:
            content = decompressed(archive)
        except FileNotFoundError:
            continue                             # without zstd their form is not checked
        with tarfile.open(fileobj=io.BytesIO(content)) as entries:
            plain = [e for e in entries if e.isfile()]
            files = {e.name.removeprefix(name + "/"): entries.extractfile(e).read() for e in plain}
        if content != packed(name, files):
            yield f"{archive.name} is not of the form that tools/vectors.py pack gives"
    for folder in sorted(p for p in FOLDER.iterdir() if p.is_dir()):
        if files_of(folder):
            yield (
                f"vectors lie unpacked in tests/golden/vectors/{folder.name}, where no test reads them; "
                f"tools/vectors.py pack {folder.name} puts them into the archive"
            )
    if total > LIMIT:
        yield f"the archives have {total / 1e6:.1f} MB of at most {LIMIT / 1e6:.0f}"


def check():
    found = list(faults())
    for fault in found:
        print(f"vectors: {fault}")
    if not found:
        total = sum(archive_of(name).stat().st_size for name in names())
        print(f"vectors: {len(names())} sets, {total / 1e6:.1f} MB of at most {LIMIT / 1e6:.0f}")
    return 1 if found else 0


def main(words):
    exact = "--exact" in words
    words = [w for w in words if w != "--exact"]
    try:
        if not words:
            return check()
        verb, sets = words[0], words[1:]
        if verb not in ("unpack", "pack", "find") or not sets or (exact and verb != "pack"):
            print(__doc__.strip())
            return 0 if verb in ("-h", "--help") else 2
        for name in sets:
            if verb == "unpack":
                unpack(name)
            elif verb == "pack":
                pack(name, exact)
            else:
                print(find(name))
        return 0
    except Wrong as error:
        print(f"vectors: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
