"""For bench/jax-suite. Loaded by pytest, it writes what became of each case; as a program, it prints the table.

A line of a log: outcome, node id, seconds, the last lines of the error, with tabs between. A case of the log is not run again.
"""

import faulthandler
import fnmatch
import os
import sys
import time

LOG = os.environ.get("SUITE_LOG", "")
BEGUN = time.monotonic()


def cases(log):
    """The lines of a log by node id; of a case that failed twice (itself, then its clean-up) the last counts."""
    found = {}
    if os.path.exists(log):
        with open(log) as lines:
            for line in lines:
                outcome, name, seconds, said = (line.rstrip("\n") + "\t\t\t").split("\t")[:4]
                found[name] = (outcome, float(seconds or 0), said)
    return found


def short(nodeid):
    """The node id without folders, in one line: parameters of a case may be arrays."""
    return " ".join(nodeid.split("tests/")[-1].split())


def pytest_configure():
    """A case that names all of JAX's own platforms is for every one."""
    if LOG:
        from jax._src import test_util

        asked = test_util.test_device_matches
        test_util.test_device_matches = lambda names: {"cpu", "gpu", "tpu"} <= set(names) or asked(names)


def pytest_collection_modifyitems(items):
    done = cases(LOG)
    only = os.environ.get("SUITE_ONLY")
    wanted = None
    if only:
        with open(only) as names:
            wanted = set(names.read().splitlines())
    items[:] = [i for i in items if short(i.nodeid) not in done and (wanted is None or short(i.nodeid) in wanted)]


def pytest_runtest_logstart(nodeid):
    if time.monotonic() - BEGUN > float(os.environ["SUITE_UNTIL"]):
        os._exit(77)
    with open(LOG + ".open", "w") as f:
        f.write(short(nodeid))
    faulthandler.dump_traceback_later(float(os.environ["SUITE_LIMIT"]), exit=True, file=sys.__stderr__)


def pytest_runtest_logreport(report):
    if report.when != "call" and report.outcome == "passed":
        return
    said = ""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        said = str(report.longrepr[2])[:300].replace("\t", " ").replace("\n", " ")
    if report.outcome == "failed":
        text = str(report.longrepr)
        with open(LOG + ".errors", "a") as f:
            f.write(f"=== {short(report.nodeid)}\n{text[-8000:]}\n")
        lines = [line[1:].strip() for line in text.split("\n") if line.startswith("E ")]
        said = " | ".join(line for line in lines if line)[:600].replace("\t", " ")
    with open(LOG, "a") as f:
        f.write(f"{report.outcome}\t{short(report.nodeid)}\t{report.duration:.2f}\t{said}\n")


def pytest_runtest_logfinish():
    faulthandler.cancel_dump_traceback_later()
    if os.path.exists(LOG + ".open"):
        os.remove(LOG + ".open")


def apart():
    """Patterns of node ids that are counted apart, and why."""
    found = []
    with open(os.path.join(os.path.dirname(__file__), "jax_suite_apart.txt")) as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                found.append(line.split(None, 1))
    return found


def reason(name, said, patterns):
    """Why a case is counted apart; `None`: it is not."""
    if "found in 'HloModule" in said:
        return "looks for collectives in XLA's own partitioned HLO"
    return next((why.strip() for pattern, why in patterns if fnmatch.fnmatchcase(name, pattern)), None)


HEAD = ["file", "cases", "skipped", "pass on JAX's CPU", "of them: skipped", "apart", "pass", "fail", "share", "JAX's CPU", "Systole"]


def table(out, files):
    """Of each file: what was run, what passes on JAX's CPU, and what becomes of these here; then each that does not pass."""
    patterns, listed = apart(), []
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    for file in files:
        log = os.path.join(out, file.removesuffix(".py"))
        ours, theirs = cases(log + ".systole"), cases(log + ".cpu")
        # What JAX's CPU was not asked about, and was not skipped here, is taken to pass there.
        base = {n for n, o in theirs.items() if o[0] == "passed"} | {n for n, o in ours.items() if n not in theirs and o[0] != "skipped"}
        outcome = {n: ours.get(n, ("not run", 0.0, "")) for n in sorted(base)}
        count = lambda what: sum(o[0] == what for o in outcome.values())
        failed = {n: o for n, o in outcome.items() if o[0] not in ("passed", "skipped")}
        why = {n: reason(n, o[2], patterns) for n, o in failed.items()}
        aside = sum(w is not None for w in why.values())
        counted = count("passed") + len(failed) - aside
        share = f"{100 * count('passed') / max(1, counted):.1f} %"
        times = [f"{sum(o[1] for o in logged.values()):.0f} s" for logged in (theirs, ours)]
        all_skipped = sum(o[0] == "skipped" for o in ours.values())
        row = [f"`{file.removesuffix('.py')}`", len(ours), all_skipped, len(base), count("skipped"), aside, count("passed"), len(failed) - aside]
        print("| " + " | ".join(map(str, row + [share, *times])) + " |")
        listed += [(n, o[0], why[n] or o[2]) for n, o in failed.items()]
    print()
    for name, what, said in listed:
        print(f"- `{name}` {what}: {said}")


if __name__ == "__main__":
    table(sys.argv[1], sys.argv[2:])
