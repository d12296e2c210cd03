"""Prints what PyPI's tensorboard reads in a folder, one point a line.

    tensorboard_read.py FOLDER accumulator            the reader of scripts
    tensorboard_read.py FOLDER plugin_accumulator     that of TensorBoard's page

    scalar TAG STEP VALUE      VALUE as the f32's bits, in hexadecimal
    text TAG STEP TEXT         TEXT in hexadecimal
"""

import struct
import sys

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator

if sys.argv[2] == "accumulator":
    events = event_accumulator.EventAccumulator(
        sys.argv[1], size_guidance={event_accumulator.TENSORS: 0, event_accumulator.SCALARS: 0}
    )
else:
    events = plugin_event_accumulator.EventAccumulator(
        sys.argv[1], size_guidance={plugin_event_accumulator.TENSORS: 0}
    )
events.Reload()
tags = events.Tags()
for tag in tags.get("scalars", []):
    for point in events.Scalars(tag):
        print("scalar", tag.replace(" ", "_"), point.step, struct.pack(">f", point.value).hex())
for tag in tags["tensors"]:
    plugin = events.SummaryMetadata(tag).plugin_data.plugin_name
    for point in events.Tensors(tag):
        if plugin == "text":
            print("text", tag, point.step, point.tensor_proto.string_val[0].hex())
        else:
            value = point.tensor_proto.float_val[0]
            print("scalar", tag.replace(" ", "_"), point.step, struct.pack(">f", value).hex())
