"""A headless Chromium for tests: open a page, wait for what it shows, click, run scripts, take a picture.

It speaks Chromium's own protocol over a WebSocket, so a test needs the browser and no driver. Only the
loopback interface resolves: a page that asks for anything else asks in vain, and `requests` has it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = (
    "this test needs a browser and found none of "
    + ", ".join(NAMES)
    + " on PATH; `make browser` installs one on Debian as root, elsewhere: apt install chromium, "
    "dnf install chromium; or set CADRE_BROWSER to its path"
)
WAIT_SECONDS = 30.0
_FLAGS = (
    "--headless=new",
    "--remote-debugging-port=0",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # containers give it 64 MiB
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class BrowserError(AssertionError):
    """The page did not do what the test waited for, or a script threw."""


class Browser:
    """One page. Methods wait; `requests` and `errors` hold what the page asked for and complained of."""

    def __init__(self, socket: Any) -> None:
        self._socket, self._last_id = socket, 0
        self.requests: list[str] = []  # URLs, since the last `open`
        self.errors: list[str] = []  # uncaught exceptions and errors in the console, since the last `open`
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def open(self, url: str | Path) -> None:
        """Go to a URL, or to a file by its path, and wait until its document is loaded."""
        if isinstance(url, Path):
            url = url.absolute().as_uri()
        self.requests, self.errors = [], []
        # a marker that is gone when the old document is: "complete" could be the old one's state
        self.run("window.cadreOldPage = true")
        failed = self.command("Page.navigate", url=url).get("errorText")
        if failed:
            raise BrowserError(f"{url} does not open: {failed}")
        same_document = "#" in url
        gone = "" if same_document else "!window.cadreOldPage && "
        self.wait(f"{gone}document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited.

        Raises:
            BrowserError: it threw.
        """
        answer = self.command("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise BrowserError(f"{script!r} threw {_thrown(answer['exceptionDetails'])}")
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = WAIT_SECONDS) -> Any:
        """The value of an expression as soon as it is truthy.

        Raises:
            BrowserError: it is not within `seconds`; the message says what the page shows.
        """
        end = time.monotonic() + seconds
        while not (value := self.run(script)):
            if time.monotonic() > end:
                shown = " ".join(self.text().split())[:1500]
                raise BrowserError(
                    f"not within {seconds:g} s: {script}\nthe page shows: {shown}\nerrors: {self.errors[-5:]}"
                )
            time.sleep(0.1)
        return value

    def wait_for(self, selector: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until an element matches the CSS selector."""
        self.wait(f"document.querySelector({json.dumps(selector)}) !== null", seconds)

    def wait_for_text(self, text: str, seconds: float = WAIT_SECONDS) -> None:
        """Wait until the page shows `text`: visible text only, as a person would copy it."""
        self.wait(f"document.body && document.body.innerText.includes({json.dumps(text)})", seconds)

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element that matches; empty where none does."""
        return str(self.run(f"(document.querySelector({json.dumps(selector)}) || {{}}).innerText || ''"))

    def texts(self, selector: str) -> list[str]:
        """The visible text of each element that matches."""
        found: list[str] = self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.innerText)"
        )
        return found

    def click(self, selector: str) -> None:
        """Click the middle of the first element that matches, with the mouse, as soon as there is one."""
        self.wait_for(selector)
        self._click_at(f"document.querySelector({json.dumps(selector)})")

    def click_text(self, text: str) -> None:
        """Click the innermost, first element whose visible text is `text`, as soon as there is one."""
        element = (
            "[...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && "
            f"e.innerText && e.innerText.trim() === {json.dumps(text)}).pop()"
        )
        self.wait(f"({element}) !== undefined")
        self._click_at(element)

    def fill(self, selector: str, text: str) -> None:
        """Replace what is in an input by `text`, typed as a person would."""
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select?.()")
        if text:
            self.command("Input.insertText", text=text)
        else:
            self.press("Delete", 46)

    def press(self, key: str, code: int) -> None:
        """Press and release a key, by its name and its Windows virtual key code (Escape 27, Enter 13)."""
        for kind in ("rawKeyDown", "keyUp"):
            self.command("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code)

    def resize(self, width: int, height: int) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )

    def screenshot(self, path: Path, *, whole: bool = False) -> Path:
        """Write what the window shows as PNG; `whole`: the page to its end."""
        data = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"]
        path.write_bytes(base64.b64decode(data))
        return path

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, by its own name."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=2 * WAIT_SECONDS))
            if message.get("id") == self._last_id:
                if "error" in message:
                    raise BrowserError(f"{method}: {message['error'].get('message')}")
                result: dict[str, Any] = message["result"]
                return result
            self._heard(message.get("method"), message.get("params", {}))

    def _heard(self, event: str | None, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.errors.append(_thrown(params["exceptionDetails"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}".strip())

    def _click_at(self, element: str) -> None:
        middle = (
            f"(e => {{ e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect(); "
            f"return {{x: r.x + r.width / 2, y: r.y + r.height / 2}} }})({element})"
        )
        box, before = self.run(middle), None
        while box != before:  # panels slide in, and a click beside the element says nothing
            time.sleep(0.05)
            box, before = self.run(middle), box
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.command("Input.dispatchMouseEvent", type=kind, **box, button="left", clickCount=1)


def find_browser() -> str | None:
    """The browser's program: CADRE_BROWSER, or the first of NAMES that is on PATH."""
    named = os.environ.get("CADRE_BROWSER")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def start_browser(width: int = 1400, height: int = 900) -> Iterator[Browser]:
    """A browser with a profile of its own, which ends with all its processes.

    Raises:
        FileNotFoundError: there is no browser; the message says how to get one.
        RuntimeError: it does not start; the message has its last words.
    """
    program = find_browser()
    if program is None:
        raise FileNotFoundError(MISSING)
    flags = [*_FLAGS, f"--window-size={width},{height}"]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")  # Chromium's own sandbox refuses to run as root
    with tempfile.TemporaryDirectory(prefix="cadre-browser-", ignore_cleanup_errors=True) as profile:
        log = Path(profile) / "stderr.txt"
        with log.open("wb") as stderr:
            process = subprocess.Popen(
                [program, *flags, f"--user-data-dir={profile}", "about:blank"],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            # a page that nobody drives goes on talking: with a bound on what is unread, or with pings
            # that wait behind it, the connection would be given up between two tests
            address = _page_address(process, Path(profile), log)
            with connect(address, max_size=None, max_queue=None, ping_interval=None) as socket:
                yield Browser(socket)
        finally:
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(5)


def _page_address(process: subprocess.Popen[bytes], profile: Path, log: Path) -> str:
    """The WebSocket of the first page, once Chromium has written its port into its profile."""
    end = time.monotonic() + 2 * WAIT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        lines = _lines(profile / "DevToolsActivePort")
        if len(lines) == 2:
            targets = httpx.get(f"http://127.0.0.1:{lines[0]}/json/list", trust_env=False).json()
            pages = [t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page"]
            if pages:
                return str(pages[0])
        time.sleep(0.05)
    raise RuntimeError(
        f"the browser did not start; its last words:\n{log.read_text('utf-8', 'replace')[-2000:]}"
    )


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def _thrown(details: dict[str, Any]) -> str:
    exception = details.get("exception", {})
    return str(exception.get("description") or exception.get("value") or details.get("text"))
