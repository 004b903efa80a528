"""Opens pages of reports in headless Chromium, as phones and desks show them, light and dark.

    python3 bench/report/browser.py OUT_DIR PAGE.html…

Needs `chromium` (or google-chrome) on PATH and Python's standard library alone: it speaks the DevTools protocol over a pipe. For each page,
width and colour scheme it writes a screenshot, and fails where the page is wider than its window, something outside the page is asked
for, the console has an error, or a section is missing.
"""

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

WIDTHS = [(390, 844), (768, 1024), (1280, 900)]
SCHEMES = ["light", "dark"]
LOOK = """JSON.stringify({
  width: document.documentElement.scrollWidth, height: document.documentElement.scrollHeight, window: window.innerWidth,
  sections: [...document.querySelectorAll('section')].map(s => s.id), charts: document.querySelectorAll('svg').length,
  broken: [...document.images].filter(i => !i.complete || i.naturalWidth === 0).length,
  wide: [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > window.innerWidth + 1
    && !e.closest('.wide,pre,svg')).map(e => e.tagName + '.' + e.className).slice(0, 5),
  small: Math.min(99, ...[...document.querySelectorAll('.plot svg')].map(s => parseFloat(getComputedStyle(s.querySelector('text')).fontSize) * s.getBoundingClientRect().width / s.viewBox.baseVal.width)),
  background: getComputedStyle(document.body).backgroundColor, ink: getComputedStyle(document.body).color})"""


class Browser:
    """Chromium, spoken to through descriptors 3 and 4."""

    def __init__(self):
        names = ["chromium", "chromium-browser", "google-chrome"]
        found = next((p for p in map(shutil.which, names) if p), None)
        if not found:
            sys.exit("no Chromium on PATH")
        self.home = tempfile.TemporaryDirectory()
        to_read, self.out = os.pipe()
        self.inp, to_write = os.pipe()
        args = [found, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe"]
        args += ["--disable-background-networking", "--no-first-run", f"--user-data-dir={self.home.name}", "about:blank"]

        def wire():
            os.dup2(to_read, 13), os.dup2(to_write, 14)
            os.dup2(13, 3), os.dup2(14, 4)

        self.process = subprocess.Popen(args, preexec_fn=wire, close_fds=False, stderr=subprocess.DEVNULL)
        os.close(to_read), os.close(to_write)
        self.number, self.rest, self.events = 0, b"", []
        version = self.call("Browser.getVersion")
        self.version = version["product"]

    def read(self):
        while b"\0" not in self.rest:
            part = os.read(self.inp, 1 << 16)
            if not part:
                sys.exit("the browser has gone")
            self.rest += part
        message, self.rest = self.rest.split(b"\0", 1)
        return json.loads(message)

    def call(self, method, session=None, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.read()
            if answer.get("id") == self.number:
                if "error" in answer:
                    sys.exit(f"{method}: {answer['error']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method):
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self.read())

    def close(self):
        self.process.terminate()
        self.process.wait()


def look(browser, page, size, scheme, out):
    """What one window shows: a list of what is wrong, and what was seen."""
    target = browser.call("Target.createTarget", url="about:blank")["targetId"]
    session = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    browser.events.clear()
    for domain in ["Page", "Network", "Runtime", "Log"]:
        browser.call(f"{domain}.enable", session)
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.call("Emulation.setDeviceMetricsOverride", session, **metrics)
    feature = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.call("Emulation.setEmulatedMedia", session, features=feature)
    browser.call("Page.navigate", session, url=page.resolve().as_uri())
    browser.wait("Page.loadEventFired")
    seen = json.loads(browser.call("Runtime.evaluate", session, expression=LOOK)["result"]["value"])
    whole = {**metrics, "height": min(seen["height"], 12000)}
    browser.call("Emulation.setDeviceMetricsOverride", session, **whole)
    shot = browser.call("Page.captureScreenshot", session, format="png")["data"]
    name = f"{page.stem}-{width}-{scheme}.png"
    (out / name).write_bytes(base64.b64decode(shot))
    wrong = []
    if seen["width"] > width or seen["wide"]:
        wrong.append(f"wider than its window: {seen['width']} > {width}, {seen['wide']}")
    for event in browser.events:
        method, params = event.get("method"), event.get("params", {})
        url = params.get("request", {}).get("url", "")
        if method == "Network.requestWillBeSent" and not url.startswith(("file:", "data:")):
            wrong.append(f"asked for {url}")
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            wrong.append(f"console: {params}")
        if method == "Runtime.exceptionThrown":
            wrong.append(f"an exception: {params}")
        if method == "Log.entryAdded" and params["entry"]["level"] == "error":
            wrong.append(f"log: {params['entry']['text']}")
    if seen["broken"]:
        wrong.append(f"{seen['broken']} pictures are broken")
    if seen["small"] < 9:
        wrong.append(f"texts of charts are {seen['small']:.1f} px")
    browser.call("Target.closeTarget", targetId=target)
    return wrong, seen


def main():
    out, pages = Path(sys.argv[1]), [Path(p) for p in sys.argv[2:]]
    out.mkdir(parents=True, exist_ok=True)
    browser = Browser()
    print(browser.version)
    failed, colours = 0, {}
    for page in pages:
        for size in WIDTHS:
            for scheme in SCHEMES:
                wrong, seen = look(browser, page, size, scheme, out)
                failed += bool(wrong)
                colours[scheme] = seen["background"]
                told = "; ".join(wrong) or "right"
                print(f"{page.name} {size[0]} px {scheme}: {len(seen['sections'])} sections, {seen['charts']} charts, {seen['height']} px high: {told}")
    browser.close()
    if colours.get("light") == colours.get("dark"):
        failed += 1
        print("light and dark look the same")
    print(f"{failed} failed")
    sys.exit(failed > 0)


main()
