"""The launcher through its socket, on the kernel and the bubblewrap at hand: runs, their limits, and deaths."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from gateway.sandbox.launcher_messages import Spawn, Up
from gateway.sandbox.outside_check import status_of
from tests.sandbox.in_groups import eventually, standing
from tests.sandbox.launcher_driver import (
    MIB,
    ROOMY,
    Driver,
    Run,
    bounded,
    launcher,
    none_alive,
    uids_alive,
)

CGROUPS = Path("/sys/fs/cgroup")
FOREVER = "setInterval(() => {}, 1000); console.log('there')"


def node(script: str) -> list[str]:
    return ["node", "-e", script]


def there(run: Run) -> None:
    """Wait until the command says that it runs."""
    assert eventually(lambda: b"there" in run.so_far(), within=10)


def init_of(run: Run) -> tuple[int, int]:
    """The host's numbers of a run's bubblewrap and of its child; beside them there is the starter while it is held."""
    assert run.ready is not None
    pids = [int(each) for each in (Path(run.ready.places["pids"]) / "cgroup.procs").read_text().split()]
    inner = [pid for pid in pids if f"\nNSpid:\t{pid}\t1\n" in Path(f"/proc/{pid}/status").read_text()]
    (outer,) = (pid for pid in pids if len(status_of(pid)["NSpid"].split()) == 1)
    return outer, inner[0]


class TestARun:
    def test_leaves_nothing(self, driver: Driver) -> None:
        assert isinstance(driver.up, Up)
        assert (driver.up.slots, driver.up.swept) == (2, 0)
        ran = driver.run(node("console.log(6 * 7)"))
        assert (ran.stdout, ran.stderr) == (b"42\n", b"")
        told = ran.told()
        assert (told.exit_code, told.command_status, told.stopped) == (0, 0, None)
        assert told.sandbox_status in {0, signal.SIGKILL}  # it has told the code, and is not waited for
        assert 5_000 < told.cpu_us < 2_000_000
        assert MIB < (told.peak_memory or 0) < 200 * MIB
        assert (told.task_denials, told.oom_kills) == (0, 0)
        assert 8 <= (told.peak_tasks or 0) <= 16
        assert standing(CGROUPS, driver.prefix) == []

    def test_knows_its_own_status_where_bubblewrap_tells_a_code(self, driver: Driver) -> None:
        killed = driver.run(node("process.kill(process.pid, 'SIGKILL'); setInterval(() => {}, 1e3)")).told()
        exited = driver.run(node("process.exit(137)")).told()
        assert (killed.exit_code, exited.exit_code) == (137, 137)
        assert (killed.command_status, exited.command_status) == (signal.SIGKILL, 137 << 8)

    def test_sees_only_what_it_is_given(self, driver: Driver) -> None:
        told = json.loads(
            driver.run(
                node(
                    "const fs = require('fs'), ls = fs.readdirSync; console.log(JSON.stringify([process.env, "
                    "process.cwd(), ls('/').sort(), ls('/dev').sort(), ls('/proc').sort(), ls('/proc/self/fd').length, "
                    "process.getuid(), process.getgroups(), process.umask(), require('os').hostname()]))"
                )
            ).stdout
        )
        environment = {"PATH": "/usr/bin", "HOME": "/scratch", "TMPDIR": "/scratch", "PWD": "/scratch"}
        environment["NODE_OPTIONS"] = "--max-old-space-size=176 --max-semi-space-size=16"
        assert told[:2] == [environment, "/scratch"]
        assert told[2] == ["dev", "etc", "lib", "lib64", "out", "proc", "scratch", "tmp", "usr"]
        assert told[3] == ["fd", "full", "null", "random", "stderr", "stdin", "stdout", "urandom", "zero"]
        assert told[4] == ["1", "2", "self", "thread-self"]
        assert told[6:] == [65534, [65534], 0o022, "sandbox"]

    def test_inherits_the_three_standard_streams_alone(self, driver: Driver) -> None:
        script = """
const fs = require('fs'), seen = [];
for (let fd = 0; fd < 256; fd++) try {
    const to = fs.readlinkSync('/proc/self/fd/' + fd);
    if (!to.startsWith('anon_inode:') && !to.startsWith('/dev/null')) seen.push([fd, to.split(':')[0]]);
} catch {}
console.log(JSON.stringify(seen.filter(([, kind]) => kind != 'pipe')), seen.slice(0, 3).map(([fd]) => fd).join());
"""
        assert driver.run(node(script)).stdout == b"[] 0,1,2\n"

    def test_reads_its_input_and_writes_bytes_as_they_are(self, driver: Driver) -> None:
        given = bytes(range(256)) * 4096
        assert driver.run(node("process.stdin.pipe(process.stdout)"), stdin=given).stdout == given

    def test_is_given_arguments_as_they_are(self, driver: Driver) -> None:
        arguments = ["--", "-e", "", "ä\u202e\n", "x" * 4096]
        script = "console.log(JSON.stringify(process.argv.slice(1)))"
        ran = driver.run(["node", "-e", script, "--", *arguments])
        assert json.loads(ran.stdout) == arguments

    @pytest.mark.parametrize("name", ["--version", "--ro-bind", "nothing-of-the-kind", "/usr/lib", "./here"])
    def test_that_cannot_be_executed_is_told_by_the_missing_code(self, driver: Driver, name: str) -> None:
        told = driver.run([name, "/", "/mnt"])
        assert told.told().exit_code is None
        assert os.WIFEXITED(told.told().sandbox_status or 0)
        assert told.stderr.startswith(name.encode() + b": ")

    def test_of_twelve_seconds_survives(self, driver: Driver) -> None:
        ran = driver.run(node("setTimeout(() => console.log('there'), 12000)"), bounded(wall_us=20_000_000))
        assert ran.stdout == b"there\n"
        assert (ran.told().exit_code, ran.told().stopped) == (0, None)
        assert 12_000_000 <= ran.told().wall_us < 15_000_000

    def test_shares_no_user_and_no_processes_with_the_other_slot(self, driver: Driver) -> None:
        runs = [driver.spawn(node(FOREVER), slot=slot) for slot in (0, 1)]
        for run in runs:
            driver.release(run)
        for run in runs:
            there(run)
        users = {Path(f"/proc/{pid}").stat().st_uid for pid in uids_alive()}
        assert len(users) == 2
        for run in runs:
            driver.stop(run)
        assert [driver.ended(run).stopped for run in runs] == ["cancelled", "cancelled"]
        assert [driver.clear(run).cgroups for run in runs] == [0, 0]
        assert none_alive()

    def test_leaves_files_that_its_directories_show_after_its_death(self, driver: Driver) -> None:
        run = driver.spawn(
            node("const fs = require('fs'); fs.writeFileSync('/out/a', 'b'); fs.writeFileSync('c', 'd')")
        )
        driver.release(run)
        driver.ended(run)
        assert [os.stat(name, dir_fd=place).st_size for name, place in zip("ca", run.left, strict=True)] == [1, 1]
        cleared = driver.clear(run)
        assert (cleared.mounts, cleared.cgroups) == (0, 0)


class TestALimit:
    def test_of_processor_time(self, driver: Driver) -> None:
        told = driver.run(node("for (;;);"), bounded(cpu_us=300_000)).told()
        assert told.stopped == "cpu"
        assert 300_000 <= told.cpu_us < 450_000

    def test_of_processor_time_over_several_processes(self, driver: Driver) -> None:
        script = "for (let i = 0; i < 4; i++) require('child_process').spawn('node', ['-e', 'for (;;);'])"
        told = driver.run(node(script), bounded(cpu_us=600_000)).told()
        assert told.stopped == "cpu"
        assert 600_000 <= told.cpu_us < 800_000

    def test_of_time(self, driver: Driver) -> None:
        script = "for (const s of ['SIGTERM', 'SIGINT', 'SIGHUP']) process.on(s, () => {}); " + FOREVER
        told = driver.run(node(script), bounded(wall_us=400_000)).told()
        assert told.stopped == "wall"
        assert 400_000 <= told.wall_us < 600_000

    def test_of_memory(self, driver: Driver) -> None:
        script = "const kept = []; for (;;) kept.push(Buffer.alloc(4 << 20, 1))"
        told = driver.run(node(script), bounded(memory_bytes=96 * MIB)).told()
        assert told.stopped == "memory"
        assert (told.peak_memory or 0) < (96 + 64 + 1) * MIB

    def test_of_memory_in_a_child_ends_all_of_it(self, driver: Driver) -> None:
        child = "const kept = []; for (;;) kept.push(Buffer.alloc(4 << 20, 1))"
        script = f"require('child_process').spawn('node', ['-e', {child!r}]).on('exit', () => console.log('went on'))"
        bounds = bounded(memory_bytes=128 * MIB, host_bytes=128 * MIB)
        ran = driver.run(node(script), bounds)
        assert ran.told().stopped == "memory"
        assert ran.stdout == b""

    def test_of_memory_does_not_count_what_is_on_disk(self, driver: Driver) -> None:
        script = """
const fs = require('fs'), file = fs.openSync('/scratch/a', 'w'), block = Buffer.alloc(1 << 20, 1);
for (let i = 0; i < 180; i++) fs.writeSync(file, block);
setTimeout(() => console.log('done'), 300);
"""
        ran = driver.run(node(script), bounded(memory_bytes=64 * MIB, disk_bytes=200 * MIB))
        assert (ran.stdout, ran.told().stopped) == (b"done\n", None)
        assert (ran.told().peak_memory or 0) > 180 * MIB

    def test_of_tasks(self, driver: Driver) -> None:
        script = """
const {spawn} = require('child_process'); let failed = 0, started = 0;
for (let i = 0; i < 12; i++) spawn('node', ['-e', 'setTimeout(() => {}, 500)'])
    .on('error', () => failed++).on('spawn', () => started++);
setTimeout(() => console.log(failed > 0, started > 0), 700);
"""
        ran = driver.run(node(script), bounded(tasks=34))
        assert ran.told().peak_tasks == 34
        assert (ran.told().task_denials or 0) > 0

    def test_of_one_process(self, driver: Driver) -> None:
        script = "console.log(require('child_process').spawnSync('node', ['-v']).error.code)"
        assert driver.run(node(script), bounded(tasks=18, single=True)).stdout == b"EAGAIN\n"

    @pytest.mark.parametrize(("place", "most"), [("/scratch", 8 * MIB), ("/out", 2 * MIB)])
    def test_of_disk(self, driver: Driver, place: str, most: int) -> None:
        script = f"""
const fs = require('fs'), file = fs.openSync('{place}/a', 'w'), block = Buffer.alloc(65536); let n = 0;
try {{ for (;;) n += fs.writeSync(file, block) }} catch (e) {{ console.log(n, e.code) }}
"""
        ran = driver.run(node(script), bounded(disk_bytes=8 * MIB, artifact_bytes=2 * MIB))
        assert ran.stdout == f"{most} ENOSPC\n".encode()

    def test_of_open_files_and_of_what_may_be_seen_of_them(self, driver: Driver) -> None:
        script = """
const fs = require('fs'); let n = 0;
try { for (;;) { fs.openSync('/dev/null'); n++ } } catch (e) { console.log(n < 256, e.code) }
"""
        assert driver.run(node(script)).stdout == b"true EMFILE\n"

    def test_of_what_can_be_executed_and_written(self, driver: Driver) -> None:
        script = """
const fs = require('fs'), {spawnSync} = require('child_process'), said = [];
for (const place of ['/scratch/node', '/out/node']) {
    fs.writeFileSync(place, '\\x7fELF', {mode: 0o755});
    said.push(spawnSync(place).error.code);
}
for (const place of ['/a', '/usr/a', '/etc/a', '/dev/a', '/usr/bin/node'])
    try { fs.writeFileSync(place, 'x'); said.push('written') } catch (e) { said.push(e.code) }
console.log(said.join());
"""
        assert driver.run(node(script)).stdout == b"EACCES,EACCES,EROFS,EROFS,EROFS,EROFS,EROFS\n"


class TestHeld:
    def test_until_it_is_let_go(self, driver: Driver) -> None:
        run = driver.spawn(node("console.log('there')"))
        assert not eventually(lambda: bool(run.so_far()), within=0.3)
        driver.release(run)
        assert driver.ended(run).exit_code == 0
        assert run.stdout == b"there\n"
        driver.clear(run)

    def test_and_stopped_never_ran(self, driver: Driver) -> None:
        run = driver.spawn(node("console.log('there')"))
        driver.stop(run)
        failed = driver.failed(run)
        assert (failed.reason, failed.detail, failed.left) == ("sandbox.stopped", "cancelled", None)
        assert run.stdout == b""
        assert standing(CGROUPS, driver.prefix) == []

    def test_stopped_while_it_is_set_up(self, driver: Driver) -> None:
        # So that it hears both at once, however busy the machine is.
        driver.process.send_signal(signal.SIGSTOP)
        run = driver.begin(node("console.log('there')"))
        driver.stop(run)
        driver.process.send_signal(signal.SIGCONT)
        assert driver.failed(run).reason == "sandbox.stopped"
        assert (run.stdout, none_alive()) == (b"", True)

    @pytest.mark.parametrize("which", ["bubblewrap", "its child"])
    def test_without_bubblewrap_never_ran(self, driver: Driver, which: str) -> None:
        run = driver.spawn(node("console.log('there')"))
        os.kill(init_of(run)[which != "bubblewrap"], signal.SIGKILL)
        failed = driver.failed(run)
        assert (failed.reason, failed.left) == ("sandbox.bwrap_failed", None)
        assert (run.stdout, none_alive()) == (b"", True)

    def test_twice_in_one_slot_is_refused(self, driver: Driver) -> None:
        run = driver.spawn(node("0"))
        second = driver.begin(node("0"))
        assert driver.failed(second).reason == "sandbox.spawn_refused"
        driver.stop(run)
        driver.failed(run)

    def test_in_a_slot_that_is_not_there_is_refused(self, driver: Driver) -> None:
        assert driver.failed(driver.begin(node("0"), slot=2)).reason == "sandbox.spawn_refused"

    def test_without_a_filter_is_refused(self, driver: Driver) -> None:
        empty = [os.memfd_create("empty") for _ in range(5)]
        driver.say(Spawn("run-without", 0, ROOMY), empty)
        for each in empty:
            os.close(each)
        assert driver.failed(Run("run-without", -1)).detail == "the filter is no program"


class TestADeath:
    def test_of_bubblewrap_ends_the_run_with_what_is_known(self, driver: Driver) -> None:
        run = driver.spawn(node(FOREVER))
        outer, _ = init_of(run)
        driver.release(run)
        there(run)
        os.kill(outer, signal.SIGKILL)
        told = driver.ended(run)
        assert (told.exit_code, told.sandbox_status, told.stopped, told.processes) == (None, signal.SIGKILL, None, 0)
        assert none_alive()
        driver.clear(run)

    def test_of_the_sandbox_s_first_process_is_not_the_command_s_own_ending(self, driver: Driver) -> None:
        run = driver.spawn(node(FOREVER))
        _, inner = init_of(run)
        driver.release(run)
        there(run)
        os.kill(inner, signal.SIGKILL)
        told = driver.ended(run)
        assert (told.exit_code, told.stopped, told.processes) == (137, "cancelled", 0)
        driver.clear(run)

    @pytest.mark.parametrize("released", [False, True])
    def test_of_the_launcher_ends_all_of_it_within_a_second(self, image_of_runs: Path, released: bool) -> None:
        with launcher(image_of_runs) as driver:
            run = driver.spawn(node(FOREVER))
            if released:
                driver.release(run)
                there(run)
            driver.process.send_signal(signal.SIGKILL)
            driver.gone()
            assert none_alive(within=1.0)
            assert run.stdout == (b"there\n" if released else b"")
            with pytest.raises((EOFError, ConnectionError)):
                driver.hear()
            assert standing(CGROUPS, driver.prefix) == []

    def test_of_the_launcher_and_its_switch_leaves_nothing_that_runs_and_is_swept(self, image_of_runs: Path) -> None:
        with launcher(image_of_runs) as driver:
            run = driver.spawn(node("console.log('there')"))
            children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children").read_text().split()
            switch = next(int(each) for each in children if int(each) not in init_of(run))
            os.kill(switch, signal.SIGSTOP)
            driver.process.send_signal(signal.SIGKILL)
            driver.gone()
            os.kill(switch, signal.SIGKILL)
            with launcher(image_of_runs, prefix=driver.prefix) as next_one:
                assert isinstance(next_one.up, Up)
                assert next_one.up.swept == 1
                assert (none_alive(), run.stdout) == (True, b"")
                assert next_one.run(node("console.log(1)")).stdout == b"1\n"

    @pytest.mark.parametrize("released", [False, True])
    @pytest.mark.parametrize("how", ["end of file", "SIGTERM"])
    def test_of_the_node_kills_first_and_ends_the_launcher(self, image_of_runs: Path, how: str, released: bool) -> None:
        # Launchers that were killed by other tests left theirs to the machine, which takes its time.
        before = set(uids_alive(zombies=True))
        with launcher(image_of_runs) as driver:
            runs = [driver.spawn(node(FOREVER), slot=slot) for slot in (0, 1)]
            if released:
                for run in runs:
                    driver.release(run)
                for run in runs:
                    there(run)
            began = time.monotonic()
            if how == "SIGTERM":
                driver.process.send_signal(signal.SIGTERM)
            else:
                driver.hang_up()
            assert driver.gone() == 0
            assert time.monotonic() - began < 1.0
            assert set(uids_alive(zombies=True)) <= before
            assert [run.stdout for run in runs] == [b"there\n" if released else b""] * 2
            assert standing(CGROUPS, driver.prefix) == []

    @pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "end of file"])
    @pytest.mark.parametrize("after_ms", [0, 3, 6, 9, 12])
    def test_in_the_midst_of_setting_up_lets_nothing_run(self, image_of_runs: Path, how: str, after_ms: int) -> None:
        with launcher(image_of_runs) as driver:
            runs = [driver.begin(node("console.log('there')"), slot=slot) for slot in (0, 1)]
            time.sleep(after_ms / 1000)
            if how == "end of file":
                driver.hang_up()
            else:
                driver.process.send_signal(getattr(signal, how))
            driver.gone()
            assert none_alive(within=1.0)
            assert [run.stdout for run in runs] == [b"", b""]
            assert eventually(lambda: standing(CGROUPS, driver.prefix) == [], within=1.0)

    def test_of_the_switch_ends_the_launcher(self, image_of_runs: Path) -> None:
        with launcher(image_of_runs) as driver:
            children = Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children").read_text().split()
            (switch,) = map(int, children)
            os.kill(switch, signal.SIGKILL)
            assert driver.gone() == 0


def test_twenty_runs_leave_the_launcher_as_it_was(driver: Driver) -> None:
    proc = Path(f"/proc/{driver.process.pid}")

    def held() -> tuple[int, list[str]]:
        return len(list((proc / "fd").iterdir())), (proc / "task" / proc.name / "children").read_text().split()

    driver.run(node("0"))
    before = held()
    for _ in range(20):
        driver.run(node("0"))
    assert held() == before
    assert standing(CGROUPS, driver.prefix) == []


def test_a_node_that_does_not_listen_stops_no_timer_and_is_told_all_of_it_later(image_of_runs: Path) -> None:
    with launcher(image_of_runs) as driver:
        run = driver.spawn(node(FOREVER), bounded(wall_us=2_000_000))
        driver.release(run)
        there(run)
        for number in range(600):
            driver.say(Spawn(f"run-{number}", 1, ROOMY))
        assert eventually(lambda: not uids_alive(), within=4.0)
        for number in range(600):
            assert driver.failed(Run(f"run-{number}", -1)).reason == "sandbox.spawn_refused"
        assert driver.ended(run).stopped == "wall"
        assert driver.clear(run).cgroups == 0


def test_what_is_no_message_ends_the_launcher(image_of_runs: Path) -> None:
    with launcher(image_of_runs) as driver:
        run = driver.spawn(node(FOREVER))
        driver._end.send(b"{}")
        assert driver.gone() == 0
        assert (none_alive(), run.stdout) == (True, b"")
