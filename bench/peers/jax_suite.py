"""For bench/jax-suite. Loaded by pytest, it writes what became of each case; as a program, it prints the table.

A line of a log: outcome, node id, seconds, the last lines of the error, with tabs between. A case of the log is not run again.
"""

import faulthandler
import os
import sys
import time

LOG = os.environ.get("SUITE_LOG", "")
BEGUN = time.monotonic()


def cases(log):
    """The lines of a log by node id; of a case that failed twice (itself, then its clean-up) the last counts."""
    found = {}
    if os.path.exists(log):
        for line in open(log):
            outcome, name, seconds, said = (line.rstrip("\n") + "\t\t\t").split("\t")[:4]
            found[name] = (outcome, float(seconds or 0), said)
    return found


def short(nodeid):
    return nodeid.split("/")[-1]


def pytest_collection_modifyitems(items):
    done = cases(LOG)
    only = os.environ.get("SUITE_ONLY")
    wanted = set(open(only).read().split()) if only else None
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


def table(out, files):
    """A line for each file: cases, passed on JAX's CPU, of these on ours, of these skipped by the test on ours."""
    print(f"{'file':32} {'cases':>6} {'jax':>6} {'ours':>6} {'%':>7} {'skipped':>8} {'jax s':>7} {'ours s':>7}")
    for file in files:
        log = os.path.join(out, file.removesuffix(".py"))
        ours, theirs = cases(log + ".systole"), cases(log + ".cpu")
        # without a run on JAX's CPU, all that was not skipped is taken to pass there
        base = {n for n, o in theirs.items() if o[0] == "passed"} or {n for n, o in ours.items() if o[0] != "skipped"}
        passed = sum(ours.get(n, " ")[0] == "passed" for n in base)
        skipped = sum(ours.get(n, " ")[0] == "skipped" for n in base)
        share = 100 * passed / max(1, len(base) - skipped)
        times = [sum(o[1] for o in logged.values()) for logged in (theirs, ours)]
        print(f"{file:32} {len(ours):6} {len(base):6} {passed:6} {share:7.2f} {skipped:8} {times[0]:7.0f} {times[1]:7.0f}")
        with open(log + ".failures", "w") as f:
            for name in sorted(base):
                if ours.get(name, " ")[0] not in ("passed", "skipped"):
                    f.write(f"{name}\t{ours[name][2] if name in ours else 'not run'}\n")


if __name__ == "__main__":
    table(sys.argv[1], sys.argv[2:])
