"""The names of slices, each once."""

import itertools

numbers = itertools.count()


def get_current_pod_name():
    return f"slice-{next(numbers)}"
