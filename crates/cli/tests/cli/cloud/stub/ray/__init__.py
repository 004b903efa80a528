"""Stands for Ray: tasks are threads of this process, what they are asked for with is written down, and each bucket is mounted."""

import json
import os
import threading
import time

from . import exceptions, util  # noqa: F401

os.path.ismount = lambda path: True
time.sleep = lambda seconds: None


def note(line):
    with open(os.environ["STUB"] + "/calls", "a") as calls:
        calls.write(line + "\n")


class Later:
    """What a task or a method of an actor will come to."""

    def __init__(self, function, args, is_task):
        self.function, self.args, self.is_task, self.value = function, args, is_task, None

    def run(self):
        self.value = self.function(*self.args)


class Remote:
    def __init__(self, what, asked):
        self.what, self.asked = what, asked

    def options(self, **asked):
        return Remote(self.what, {**self.asked, **asked})

    def remote(self, *args):
        asked = {name: value for name, value in self.asked.items() if name != "max_retries"}
        if isinstance(self.what, type):
            note("actor " + json.dumps(asked))
            return Actor(self.what(*args))
        note("task " + json.dumps(asked))
        return Later(self.what, args, True)


class Actor:
    def __init__(self, object):
        self.where = Remote.__new__(Remote)
        self.where.remote = lambda *args: Later(object.where, args, False)


def remote(**asked):
    return lambda what: Remote(what, asked)


def init(address):
    assert address == "auto"


def kill(actor):
    note("kill")


def get(all):
    if any(later.is_task for later in all):
        with open(os.environ["STUB"] + "/attempts", "a") as attempts:
            attempts.write("x\n")
    threads = [threading.Thread(target=later.run) for later in all]
    if not all[0].is_task:
        # One after the other: each finds a slice of its own.
        for later in all:
            later.run()
    else:
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
    return [later.value for later in all]
