"""A launcher that contains nothing: it keeps to the wire, and does what the script says that stands for the command.

Run as the real one is, with options before its settings.  The script is the first argument of a command, as JSON; its
members are those of `Script`.  Whatever it hears is noted in `heard`, in the directory `work` beside the image.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gateway.sandbox.launcher_messages import (
    LONGEST,
    Clear,
    Cleared,
    Ended,
    Failed,
    Laid,
    Left,
    Message,
    Ready,
    Release,
    Settings,
    Spawn,
    Stop,
    Unfit,
    Up,
    message_of,
    packet,
)


@dataclasses.dataclass
class Script:
    """What a run does.

    `at` is one of spawned, released, ended and cleared: there it does `then`, which is `die`, `hang` or `garbage`.
    `fails` is the reason of a set-up that fails, or of one that is `ready` before it does; `left` what is left of it.
    `waits` has it run until it is stopped.
    `files` are what it leaves in `/out`, and with `much` it leaves too much for the launcher in `/scratch`; it `leaves`
    them as often as it says so.
    When it is cleared another is laid in its slot where it `lays` one.
    `keeps_output_open` has somebody else hold its standard output.  Without an `exit_code` it was never executed.
    """

    out: str = ""
    err: str = ""
    echo: bool = False
    exit_code: int | None = 0
    files: dict[str, str] = dataclasses.field(default_factory=dict)
    much: bool = False
    leaves: int = 1
    at: str = ""
    then: str = ""
    fails: str = ""
    ready: bool = False
    left: str | None = None
    waits: bool = False
    lays: bool = False
    stopped: str | None = None
    mounts: int | None = 0
    keeps_output_open: bool = False
    slow_s: float = 0.0


def main() -> None:
    *options, told = sys.argv[1:]
    settings = Settings(**json.loads(told))
    work = Path(settings.image).with_name("work")
    work.mkdir(exist_ok=True)
    Launcher(settings, work).work(options)


class Run:
    """A run that was spawned; its script goes on in a thread once it is released."""

    def __init__(self, asked: Spawn, script: Script, descriptors: list[int], directory: Path) -> None:
        self.asked, self.script, self.descriptors, self.directory = asked, script, descriptors, directory
        self.name = asked.run
        self.stopped: str | None = None
        self.released = threading.Event()
        self.stop = threading.Event()

    def close(self, *which: int) -> None:
        for each in which:
            os.close(self.descriptors[each])


class Launcher:
    def __init__(self, settings: Settings, place: Path) -> None:
        self.settings, self.place = settings, place
        self.socket = socket.socket(fileno=os.dup(0))
        self.runs: dict[str, Run] = {}

    def work(self, options: list[str]) -> None:
        if "--silent" in options:
            time.sleep(60)
        if "--dies" in options:
            sys.exit("it cannot start")
        if "--unfit" in options:
            self.say(Unfit("sandbox.userns_denied", "no user namespaces", "allow them"))
            return
        self.say(Up("0.8.0", "hybrid", self.settings.slots, 0))
        while True:
            said, descriptors, _, _ = socket.recv_fds(self.socket, LONGEST, 5)
            if not said:
                if "--stays" in options:
                    time.sleep(60)
                return
            message = message_of(said)
            with (self.place / "heard").open("a") as log:
                log.write(json.dumps({"says": type(message).__name__, **dataclasses.asdict(message)}) + "\n")
            self.hear(message, descriptors)

    def say(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        socket.send_fds(self.socket, [packet(message)], descriptors) if descriptors else self.socket.send(
            packet(message)
        )

    def hear(self, message: Message, descriptors: list[int]) -> None:
        match message:
            case Spawn():
                self.spawn(message, descriptors)
            case Release(name):
                if name in self.runs:
                    self.runs[name].released.set()
            case Stop(name, reason):
                self.stop(name, reason)
            case Clear(name):
                self.clear(self.runs[name])

    def stop(self, name: str, reason: str) -> None:
        run = self.runs.get(name)
        if run is None:
            return
        run.stopped = run.stopped or reason
        if not run.released.is_set():
            run.close(0, 1, 2)
            del self.runs[name]
            self.say(Failed(name, "stopped", "before its release", run.script.left))
        run.stop.set()

    def spawn(self, spawn: Spawn, descriptors: list[int]) -> None:
        words = os.read(descriptors[3], 2**20).split(b"\0")
        assert words.pop() == b""
        script = Script(**json.loads(words[0]))
        directory = Path(tempfile.mkdtemp(dir=self.place))
        run = self.runs[spawn.run] = Run(spawn, script, descriptors, directory)
        if script.fails and not script.ready:
            self.fail(run)
            return
        if not self.comes_to(run, "spawned"):
            return
        for name in ("scratch", "out"):
            (directory / name).mkdir()
        self.say(Ready(spawn.run, {"memory": "/nowhere"}, 1000, ahead=False))
        if script.fails:
            self.fail(run)
            return
        threading.Thread(target=self.go_on, args=(run,), daemon=True).start()

    def fail(self, run: Run) -> None:
        run.close(0, 1, 2)
        del self.runs[run.name]
        self.say(Failed(run.name, run.script.fails, "as the script says", run.script.left))

    def go_on(self, run: Run) -> None:
        run.released.wait()
        script, began = run.script, time.monotonic()
        if not self.comes_to(run, "released"):
            return
        text = b"".join(iter(lambda: os.read(run.descriptors[0], 2**16), b"")) if script.echo else b""
        for stream, content in ((1, script.out.encode("latin-1") + text), (2, script.err.encode("latin-1"))):
            write(run.descriptors[stream], content)
        for name, words in script.files.items():
            (run.directory / "out" / name).write_text(words)
        time.sleep(script.slow_s)
        if script.waits:
            run.stop.wait()
        run.close(0, 2)
        if not script.keeps_output_open:
            run.close(1)
        left = script.much or bool(script.files)
        if left:
            self.leave(run)
        if self.comes_to(run, "ended"):
            self.say(ended(run, began))
            if not left:
                self.clear(run)

    def leave(self, run: Run) -> None:
        """Hand over its directories, as often as the script has it."""
        places = [os.open(run.directory / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("scratch", "out")]
        for _ in range(run.script.leaves):
            self.say(Left(run.name), tuple(places))
        for each in places:
            os.close(each)

    def clear(self, run: Run) -> None:
        if self.comes_to(run, "cleared"):
            shutil.rmtree(run.directory)
            self.say(Cleared(run.name, run.script.mounts, 0))
            del self.runs[run.name]
            if run.script.lays:
                self.say(Laid(run.asked.slot, run.asked.bounds))

    def comes_to(self, run: Run, point: str) -> bool:
        """Return False where nothing more is to come of it."""
        if run.script.at != point:
            return True
        if run.script.then == "die":
            os._exit(9)
        if run.script.then == "garbage":
            self.socket.send(b'{"says": "Nothing"}')
        return False


def write(descriptor: int, content: bytes) -> None:
    try:
        while content:
            content = content[os.write(descriptor, content) :]
    except OSError:
        return


def ended(run: Run, began: float) -> Ended:
    wall_us = round((time.monotonic() - began) * 1e6)
    stopped = run.script.stopped or run.stopped
    code = None if stopped else run.script.exit_code
    status = 9 if stopped else (1 if code is None else code) << 8
    return Ended(run.name, stopped, code, status, None, 42_400, wall_us, 2**23, 9, 0, 0, 4096, 0)


if __name__ == "__main__":
    main()
