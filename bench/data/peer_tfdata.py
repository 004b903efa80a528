#!/usr/bin/env python3
"""tf.data on the pipelines of crates/data/examples/throughput.rs, and the files that both read.

    peer_tfdata.py make DIR [--photos N]              the files, the same each time
    peer_tfdata.py WORKLOAD DIR [--seconds S]         one line of JSON: elements a second and peak memory

Workloads: `records` parses whole batches, the fastest form; `records-each` parses record by record, as most programs
do; `photos` decodes JPEG, resizes to 224 × 224, normalises and batches.
"""

import argparse
import json
import os
import resource
import time

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

FILES, RECORDS, BATCH, PHOTO_BATCH = 8, 100_000, 128, 32
AUTOTUNE = tf.data.AUTOTUNE


def make(folder, photos):
    """8 files of 12,500 records of 28 × 28 bytes and a label; JPEG photos of about 500 × 375."""
    draws = np.random.default_rng(7)
    os.makedirs(f"{folder}/records", exist_ok=True)
    os.makedirs(f"{folder}/photos", exist_ok=True)
    for k in range(FILES):
        with tf.io.TFRecordWriter(f"{folder}/records/{k}.tfrecord") as out:
            for _ in range(RECORDS // FILES):
                image = draws.integers(0, 256, 784, np.uint8).tobytes()
                feature = {
                    "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image])),
                    "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(draws.integers(10))])),
                }
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                out.write(example.SerializeToString())
    for k in range(photos):
        tall, wide = int(draws.integers(340, 410)), int(draws.integers(460, 540))
        # Smooth large shapes with some grain, so that a file is as large as a photo's.
        coarse = draws.uniform(0, 255, (12, 16, 3)).astype(np.float32)
        smooth = tf.image.resize(coarse, (tall, wide), "bicubic")
        picture = tf.cast(tf.clip_by_value(smooth + draws.normal(0, 6, (tall, wide, 3)), 0, 255), tf.uint8)
        tf.io.write_file(f"{folder}/photos/{k:05}.jpg", tf.io.encode_jpeg(picture, quality=90))


FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def raw_records(folder):
    files = tf.data.Dataset.list_files(f"{folder}/records/*.tfrecord", shuffle=False)
    read = files.interleave(tf.data.TFRecordDataset, cycle_length=4, block_length=16, num_parallel_calls=AUTOTUNE)
    return read.shuffle(1024, seed=7)


def records(folder):
    def parse(batch):
        found = tf.io.parse_example(batch, FEATURES)
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (-1, 28, 28, 1))
        return tf.cast(image, tf.float32) / 255.0, found["label"]

    return raw_records(folder).batch(BATCH).map(parse, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE), BATCH


def records_each(folder):
    def parse(record):
        found = tf.io.parse_single_example(record, FEATURES)
        image = tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (28, 28, 1))
        return tf.cast(image, tf.float32) / 255.0, found["label"]

    return raw_records(folder).map(parse, num_parallel_calls=AUTOTUNE).batch(BATCH).prefetch(AUTOTUNE), BATCH


def photos(folder):
    def load(path):
        picture = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        return tf.image.resize(picture, (224, 224)) / 127.5 - 1.0

    files = tf.data.Dataset.list_files(f"{folder}/photos/*.jpg", shuffle=False)
    return files.map(load, num_parallel_calls=AUTOTUNE).batch(PHOTO_BATCH).prefetch(AUTOTUNE), PHOTO_BATCH


def measure(workload, folder, seconds):
    dataset, batch = {"records": records, "records-each": records_each, "photos": photos}[workload](folder)
    dataset = dataset.repeat()
    batches = iter(dataset)
    for _ in range(20):
        next(batches)
    start, cpu, n = time.perf_counter(), time.process_time(), 0
    while time.perf_counter() - start < seconds:
        for _ in range(8):
            next(batches)
        n += 8
    rate = n * batch / (time.perf_counter() - start)
    per_cpu = n * batch / (time.process_time() - cpu)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"per_second": round(rate), "per_cpu_second": round(per_cpu), "peak_mib": round(peak)}
    print(json.dumps({"workload": workload} | found))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("what", choices=["make", "records", "records-each", "photos"])
    p.add_argument("folder")
    p.add_argument("--photos", type=int, default=400)
    p.add_argument("--seconds", type=float, default=5)
    args = p.parse_args()
    if args.what == "make":
        make(args.folder, args.photos)
    else:
        measure(args.what, args.folder, args.seconds)


main()
