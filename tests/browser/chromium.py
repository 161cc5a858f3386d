"""A headless Chromium, spoken to over its debugging pipe: no driver, no port, no further package."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)

# Chromium reads commands from descriptor 3 and answers on 4. A launcher of its own puts them there: in the test's
# process both numbers may be taken.
_LAUNCHER = """
import os, sys
source, sink = (os.dup(int(a)) for a in sys.argv[1:3])
while source < 5 or sink < 5:
    source, sink = os.dup(source), os.dup(sink)
os.dup2(source, 3)
os.dup2(sink, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def executable() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Chromium:
    """One browser with one tab. Every call raises TimeoutError rather than wait for ever."""

    def __init__(self, timeout: float = 60.0) -> None:
        self.timeout = timeout
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._buffer = b""
        self._session: str | None = None

    def __enter__(self) -> Chromium:
        path = executable()
        assert path is not None
        self._profile = tempfile.mkdtemp(prefix="farfield-chromium-")
        read_end, self._write = os.pipe()
        self._read, write_end = os.pipe()
        launch = [sys.executable, "-c", _LAUNCHER, str(read_end), str(write_end)]
        self._process = subprocess.Popen(
            [*launch, path, *FLAGS, f"--user-data-dir={self._profile}", "about:blank"],
            pass_fds=(read_end, write_end),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(read_end)
        os.close(write_end)
        try:
            target = self._call("Target.createTarget", url="about:blank")["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Network", "Log"):
                self._call(f"{domain}.enable")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        os.close(self._write)
        os.close(self._read)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)

    def open(
        self,
        page: Path | str,
        width: int,
        height: int = 800,
        scheme: Literal["light", "dark"] = "light",
        media: Literal["screen", "print"] = "screen",
    ) -> None:
        """Load a page from disk, or from an address, in a window of this size and wait until it is laid out."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        url = page if isinstance(page, str) else page.resolve().as_uri()
        self._call("Page.navigate", url=url)
        deadline = time.monotonic() + self.timeout
        while self.evaluate("location.protocol + document.readyState") != f"{url.partition(':')[0]}:complete":
            if time.monotonic() > deadline:
                raise TimeoutError(f"{page} did not load")
            time.sleep(0.02)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def press(self, key: Literal["Tab", "Enter"]) -> None:
        """Press a key and let it go, as a keyboard would."""
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        common: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **common, **text)
        self._call("Input.dispatchKeyEvent", type="keyUp", **common)

    def press_key(self, key: str, code: int, text: str = "") -> None:
        """Press and release a key in the page, as a keyboard does."""
        down = {"key": key, "code": key, "windowsVirtualKeyCode": code, **({"text": text} if text else {})}
        self._call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", **down)
        self._call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, x: float, y: float) -> None:
        """Move the pointer to a place in the window."""
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, whole: bool = True) -> bytes:
        """A PNG of the page, all of it or what the window shows."""
        return base64.b64decode(self._call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + self.timeout
        while True:
            answer = self._receive(deadline, method)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return dict(answer["result"])
            self._listen(answer)

    def _listen(self, event: dict[str, Any]) -> None:
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(event["params"]["request"]["url"])
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(event["params"]["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(event["params"]["exceptionDetails"]["text"])

    def _receive(self, deadline: float, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError(f"Chromium did not answer {method} in {self.timeout:.0f} s")
            data = os.read(self._read, 1 << 16)
            if not data:
                raise ConnectionError(f"Chromium ended during {method}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))
