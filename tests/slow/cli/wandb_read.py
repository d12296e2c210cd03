"""Prints what a .wandb file of PyPI's wandb holds, as JSON lines.

    wandb_read.py FILE

    {"run": {...}}, {"config": {key: value}}, {"history": {key: value}}, {"summary": {key: value}}
"""

import json
import struct
import sys

from wandb.proto import wandb_internal_pb2

BLOCK = 32768


def chunks_of(data):
    """Yields the records: a log in LevelDB's format (crc u32, length u16, kind u8) after a header of 7 bytes."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if kind == 0:
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record or its last part
            yield whole
            whole = b""


def values_of(items):
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


for chunk in chunks_of(open(sys.argv[1], "rb").read()):
    record = wandb_internal_pb2.Record()
    record.ParseFromString(chunk)
    kind = record.WhichOneof("record_type")
    if kind == "run":
        run = record.run
        print(json.dumps({"run": {"id": run.run_id, "project": run.project, "name": run.display_name,
                                  "entity": run.entity, "config": values_of(run.config.update)}}))
    elif kind == "history":
        print(json.dumps({"history": values_of(record.history.item)}))
    elif kind == "summary":
        print(json.dumps({"summary": values_of(record.summary.update)}))
