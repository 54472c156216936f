/* A hostile program: each of its words tries one kind of mischief and tells what the kernel answered.
 *
 * `hostile WORD [ARGUMENT]...` says a line an attempt, `what: EPERM` or `what: ok`, and exits with 0 once all of it was
 * tried.  The test image has it as /usr/bin/hostile, linked statically.  It tries nothing outside of a sandbox: without
 * a system-call filter over it, it exits with 70.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1L << 20)
#define FILTERED 2 /* what PR_GET_SECCOMP answers under a filter */
#define LONG_ENOUGH_MS 30 /* until the launcher has taken hold of the command, which node takes to start */
#define UNKNOWN_WORD 64
#define NO_SANDBOX 70
#define HIGH_BITS (1UL << 32) /* what the kernel drops of an int, and a filter might compare */

static char memory[1 << 16];

static void tell(const char *what, long result)
{
    printf("%s: %s\n", what, result < 0 ? strerrorname_np(errno) : "ok");
}

static void tell_number(const char *what, long number)
{
    printf("%s: %ld\n", what, number);
}

/* The call itself, past whatever the C library makes of it. */
#define TRY(name, ...) tell(#name, syscall(SYS_##name, ##__VA_ARGS__))

static void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0 && errno == EINTR)
        ;
}

static void spin(void)
{
    for (volatile unsigned long n = 0;; n++)
        ;
}

static void ignore_all_signals(void)
{
    for (int number = 1; number < NSIG; number++)
        signal(number, SIG_IGN);
}

static void grow(int shared)
{
    for (;;) {
        int kind = MAP_ANONYMOUS | (shared ? MAP_SHARED : MAP_PRIVATE);
        char *more = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, kind, -1, 0);
        if (more == MAP_FAILED) {
            tell("mmap", -1);
            exit(1);
        }
        memset(more, 1, 4 * MIB);
    }
}

/* ---- processes, processor time, memory ---- */

static void forkbomb(char **)
{
    for (;;)
        fork();
}

/* Starts children that stay until one is denied. */
static void forkcount(char **)
{
    long children = 0;
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            pause();
            _exit(0);
        }
        if (child < 0)
            break;
        children++;
    }
    tell("fork", -1);
    tell_number("children", children);
}

static void *nothing(void *unused)
{
    return unused;
}

static void fork1(char **)
{
    pthread_t thread;
    tell("fork", fork());
    tell("raw vfork", syscall(SYS_clone, CLONE_VFORK | CLONE_VM | SIGCHLD, 0, 0, 0, 0));
    tell("raw clone", syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
    tell("clone with the parent's parent", syscall(SYS_clone, CLONE_PARENT | SIGCHLD, 0, 0, 0, 0));
    tell("clone3", syscall(SYS_clone3, memory, 88));
    printf("thread: %s\n", pthread_create(&thread, NULL, nothing, NULL) ? "denied" : "ok");
}

static void membomb(char **)
{
    grow(0);
}

/* Its children run out of memory, and it does as if nothing had been. */
static void membomb_kids(char **)
{
    for (int n = 0; n < 8; n++)
        if (fork() == 0)
            grow(0);
    while (wait(NULL) > 0)
        ;
    printf("all is well\n");
}

static void sharedbomb(char **)
{
    grow(1);
}

/* ARGUMENTS: private or shared, MiB, and for how many milliseconds to hold so much. */
static void hold(char **argument)
{
    int kind = MAP_ANONYMOUS | MAP_POPULATE | (argument[0][0] == 's' ? MAP_SHARED : MAP_PRIVATE);
    char *held = mmap(NULL, atol(argument[1]) * MIB, PROT_READ | PROT_WRITE, kind, -1, 0);
    if (held == MAP_FAILED)
        tell("mmap", -1);
    sleep_ms(atol(argument[2]));
    printf("held\n");
}

/* Memory that the kernel holds for it: full pipes and sockets in many processes. */
static void buffers(char **argument)
{
    for (int n = 0; n < 40; n++) {
        if (fork() != 0)
            continue;
        int pair[2];
        while (argument[0][0] == 'p' ? pipe2(pair, O_NONBLOCK) == 0
                                     : socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0)
            while (write(pair[1], memory, sizeof memory) > 0)
                ;
        pause();
        _exit(0);
    }
    while (wait(NULL) > 0)
        ;
}

static void cpukids(char **)
{
    for (int n = 0; n < 7; n++)
        if (fork() == 0)
            spin();
    spin();
}

/* Uses its processor time in children that are gone before anybody looks. */
static void cpuflies(char **)
{
    for (;;) {
        pid_t child = fork();
        if (child == 0) {
            for (volatile long n = 0; n < 200000; n++)
                ;
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static void longsleep(char **)
{
    ignore_all_signals();
    for (;;)
        sleep_ms(1000);
}

static void stopself(char **)
{
    kill(getpid(), SIGSTOP);
    printf("went on\n");
}

/* ---- what outlives its parent ---- */

static void start_daemon(void (*live)(void))
{
    int alive[2];
    char word;
    if (pipe(alive) < 0)
        exit(1);
    if (fork() == 0) {
        setsid();
        if (fork() == 0) {
            ignore_all_signals();
            if (write(alive[1], "x", 1) == 1)
                live();
            _exit(0);
        }
        _exit(0);
    }
    if (read(alive[0], &word, 1) == 1)
        printf("the daemon lives\n");
}

static void live_apart(void)
{
    for (int fd = 0; fd < 256; fd++)
        close(fd);
    for (;;)
        sleep_ms(1000);
}

static void live_and_speak_late(void)
{
    sleep_ms(1500);
    printf("late\n");
    fflush(stdout);
    for (;;)
        sleep_ms(1000);
}

static void daemon_apart(char **)
{
    start_daemon(live_apart);
}

static void daemon_hold(char **)
{
    start_daemon(live_and_speak_late);
}

static void closefds(char **)
{
    tell("close_range", syscall(SYS_close_range, 0, ~0U, 0));
    sleep_ms(100);
    _exit(7);
}

/* ---- other processes ---- */

static void try_ptrace(char **)
{
    struct iovec here = {memory, 8}, there = {memory, 8};
    tell("attach to init", ptrace(PTRACE_ATTACH, 1, 0, 0));
    tell("seize init", ptrace(PTRACE_SEIZE, 1, 0, 0));
    tell("traceme", ptrace(PTRACE_TRACEME, 0, 0, 0));
    TRY(process_vm_readv, getpid(), &here, 1L, &there, 1L, 0L);
    TRY(process_vm_writev, getpid(), &here, 1L, &there, 1L, 0L);
    TRY(process_madvise, 0, &here, 1L, MADV_DONTNEED, 0);
    TRY(kcmp, getpid(), 1, 0, 0, 0);
    TRY(pidfd_open, 1, 0);
    TRY(pidfd_getfd, 0, 0, 0);
    TRY(pidfd_send_signal, 0, SIGKILL, 0, 0);
    TRY(rt_sigqueueinfo, 1, SIGKILL, memory);
    TRY(rt_tgsigqueueinfo, 1, 1, SIGKILL, memory);
    TRY(process_mrelease, 0, 0);
}

static void killall(char **)
{
    tell("kill(-1, SIGKILL)", kill(-1, SIGKILL));
}

/* A process group may reach over the border of a namespace of processes. */
static void killgroup(char **)
{
    sleep_ms(LONG_ENOUGH_MS);
    kill(0, SIGKILL);
    sleep_ms(1000);
}

static void killinit(char **)
{
    int numbers[] = {SIGKILL, SIGSTOP, SIGTERM, SIGINT, SIGHUP, SIGSEGV, SIGABRT};
    long others = 0;
    for (size_t n = 0; n < sizeof numbers / sizeof *numbers; n++)
        kill(1, numbers[n]);
    for (pid_t pid = 2; pid < 70000; pid++)
        others += pid != getpid() && kill(pid, SIGKILL) == 0;
    sleep_ms(50);
    tell("init lives", kill(1, 0));
    tell_number("others killed", others);
}

static void sigstop_parent(char **)
{
    tell_number("parent", getppid());
    tell("SIGSTOP", kill(getppid(), SIGSTOP));
}

/* ---- namespaces, mounts ---- */

static const struct {
    const char *name;
    unsigned long flag;
} NAMESPACES[] = {
    {"user", CLONE_NEWUSER}, {"mount", CLONE_NEWNS},     {"pid", CLONE_NEWPID},       {"net", CLONE_NEWNET},
    {"ipc", CLONE_NEWIPC},   {"uts", CLONE_NEWUTS},      {"cgroup", CLONE_NEWCGROUP}, {"time", 0x80},
};

static void namespaces(char **)
{
    for (size_t n = 0; n < sizeof NAMESPACES / sizeof *NAMESPACES; n++) {
        printf("%s ", NAMESPACES[n].name);
        tell("unshare", syscall(SYS_unshare, NAMESPACES[n].flag));
        printf("%s ", NAMESPACES[n].name);
        tell("clone", syscall(SYS_clone, NAMESPACES[n].flag | SIGCHLD, 0, 0, 0, 0));
        printf("%s ", NAMESPACES[n].name);
        tell("setns", syscall(SYS_setns, 0, NAMESPACES[n].flag));
    }
    tell("clone with high bits", syscall(SYS_clone, HIGH_BITS | CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0));
    TRY(clone3, memory, 88);
}

static void mounts(char **)
{
    tell("mount tmpfs", syscall(SYS_mount, "none", "/scratch", "tmpfs", 0, 0));
    tell("remount exec", syscall(SYS_mount, 0, "/scratch", 0, 32 | 4096 /* MS_REMOUNT, MS_BIND */, 0));
    tell("remount / writable", syscall(SYS_mount, 0, "/", 0, 32 | 4096, 0));
    TRY(umount2, "/proc", 2);
    TRY(pivot_root, "/scratch", "/scratch");
    TRY(chroot, "/scratch");
    TRY(move_mount, -1, "", -1, "", 0);
    TRY(open_tree, -1, "/", 1);
    TRY(fsopen, "tmpfs", 0);
    TRY(fsconfig, -1, 0, 0, 0, 0);
    TRY(fsmount, -1, 0, 0);
    TRY(fspick, -1, "/", 0);
    TRY(mount_setattr, -1, "/", 0, memory, 32);
}

/* ---- the kernel's doors ---- */

static void io_uring(char **)
{
    TRY(io_uring_setup, 8, memory);
    TRY(io_uring_enter, -1, 1, 0, 0, 0, 0);
    TRY(io_uring_register, -1, 0, 0, 0);
}

static void keys(char **)
{
    TRY(keyctl, 0, -3, 0, 0, 0);
    TRY(add_key, "user", "x", "y", 1, -3);
    TRY(request_key, "user", "x", 0, -3);
}

static void doors(char **)
{
    TRY(bpf, 0, memory, 72);
    TRY(perf_event_open, memory, 0, -1, -1, 0);
    TRY(userfaultfd, 1);
    TRY(kexec_load, 0, 0, 0, 0);
    TRY(kexec_file_load, -1, -1, 0, 0, 0);
    TRY(init_module, memory, 0, "");
    TRY(finit_module, -1, "", 0);
    TRY(delete_module, "none", 0);
    TRY(name_to_handle_at, -100, "/", memory, memory, 0);
    TRY(open_by_handle_at, -1, memory, 0);
    TRY(fanotify_init, 0, 0);
    TRY(fanotify_mark, -1, 0, 0, 0, 0);
    TRY(inotify_init1, 0);
    TRY(inotify_add_watch, -1, "/", 1);
    TRY(personality, 0x0040000 /* ADDR_NO_RANDOMIZE */);
    TRY(syslog, 3, memory, 16);
    TRY(acct, 0);
    TRY(swapon, "/scratch/swap", 0);
    TRY(swapoff, "/scratch/swap");
    TRY(reboot, 0, 0, 0, 0);
    TRY(quotactl, 0, 0, 0, 0);
    TRY(sethostname, "x", 1);
    TRY(setdomainname, "x", 1);
    TRY(settimeofday, 0, 0);
    TRY(clock_settime, 0, memory);
    TRY(adjtimex, memory);
    TRY(seccomp, 1, 0, memory);
    TRY(landlock_create_ruleset, 0, 0, 1);
    TRY(vhangup);
#ifdef __x86_64__
    TRY(modify_ldt, 0, memory, 16);
    TRY(iopl, 3);
    TRY(ioperm, 0, 1, 1);
    TRY(inotify_init);
#endif
}

/* What no policy names: newer than it, or left out on purpose. */
static void unnamed(char **)
{
    struct iovec here = {memory, 8};
    TRY(memfd_create, "x", 0);
    TRY(execveat, -100, "/usr/bin/hostile", 0, 0, 0);
    TRY(sysinfo, memory);
    TRY(openat2, -100, "/", memory, 24);
    TRY(preadv2, 0, &here, 1, 0, 0, 0);
    TRY(splice, 0, 0, 1, 0, 1, 0);
    TRY(tee, 0, 1, 1, 0);
    TRY(timer_create, 0, 0, memory);
    TRY(timerfd_create, 0, 0);
    TRY(signalfd4, -1, memory, 8, 0);
    TRY(mincore, memory, 4096, memory);
    TRY(remap_file_pages, memory, 4096, 0, 0, 0);
    TRY(io_setup, 1, memory);
    TRY(sync);
    TRY(syncfs, 1);
    TRY(readahead, 0, 0, 1);
    TRY(getxattr, "/", "user.x", memory, 1);
    TRY(setxattr, "/scratch", "user.x", "y", 1, 0);
    tell("cachestat", syscall(451, 0, memory, memory, 0));
    tell("statmount", syscall(457, memory, memory, 512, 0));
    tell("listmount", syscall(458, memory, memory, 8, 0));
    tell("call 1000", syscall(1000));
}

/* Calls that are allowed with some arguments and refused with these. */
static void arguments(char **)
{
    struct rlimit lower = {1, 1};
    int pair[2];
    if (pipe(pair) < 0 || ftruncate(open("/scratch/file", O_CREAT | O_RDWR, 0600), 4096) < 0)
        exit(1);
    int file = open("/scratch/file", O_RDWR);
    tell("mmap MAP_HUGETLB", (long)mmap(NULL, 2 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0));
    tell("madvise MADV_MERGEABLE", madvise((void *)((uintptr_t)memory & ~4095UL), 4096, MADV_MERGEABLE));
    tell("fcntl F_SETPIPE_SZ", fcntl(pair[0], F_SETPIPE_SZ, MIB));
    tell("fcntl F_SETOWN", fcntl(pair[0], F_SETOWN, 1));
    tell("fcntl F_SETLEASE", fcntl(file, F_SETLEASE, F_WRLCK));
    tell("fcntl F_NOTIFY", fcntl(file, F_NOTIFY, 1));
    tell("fcntl F_ADD_SEALS", fcntl(file, F_ADD_SEALS, 1));
    tell("prlimit64 to set", syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, &lower, 0));
    tell("prlimit64 to read", syscall(SYS_prlimit64, 0, RLIMIT_NOFILE, 0, memory));
    TRY(setrlimit, RLIMIT_NOFILE, &lower);
    int pipes[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pipes) < 0)
        exit(1);
    tell("SO_ATTACH_FILTER", setsockopt(pipes[0], SOL_SOCKET, SO_ATTACH_FILTER, memory, 16));
    tell("SO_SNDBUFFORCE", setsockopt(pipes[0], SOL_SOCKET, SO_SNDBUFFORCE, &pair[0], 4));
}

/* ioctl compares 32 bits of its request, so a filter that compares 64 can be passed by. */
static void terminals(char **)
{
    int waiting = -1;
    tell("TIOCSTI", syscall(SYS_ioctl, 0, TIOCSTI, "x"));
    tell("TIOCSTI with high bits", syscall(SYS_ioctl, 0, HIGH_BITS | TIOCSTI, "x"));
    tell("TIOCLINUX", syscall(SYS_ioctl, 0, TIOCLINUX, memory));
    tell("TIOCLINUX with high bits", syscall(SYS_ioctl, 0, HIGH_BITS | TIOCLINUX, memory));
    tell("TIOCSCTTY", syscall(SYS_ioctl, 0, TIOCSCTTY, 1));
    tell("TIOCNOTTY", syscall(SYS_ioctl, 0, TIOCNOTTY, 0));
    tell("FIONREAD", syscall(SYS_ioctl, 0, FIONREAD, &waiting));
    tell("open /dev/tty", open("/dev/tty", O_RDWR));
    tell("open a new terminal", posix_openpt(O_RDWR | O_NOCTTY));
}

/* ---- sockets ---- */

static void sockets(char **)
{
    long refused = 0;
    for (int family = 0; family < 64; family++) {
        if (family == AF_UNIX)
            continue;
        for (int type = SOCK_STREAM; type <= SOCK_PACKET; type++)
            refused += socket(family, type, 0) < 0 && errno == EAFNOSUPPORT;
    }
    tell_number("refused", refused);
    tell("inet with high bits", syscall(SYS_socket, HIGH_BITS | AF_INET, SOCK_STREAM, 0));
    tell("inet pair", socketpair(AF_INET, SOCK_STREAM, 0, (int *)memory));
    tell("netlink", socket(AF_NETLINK, SOCK_RAW, 0));
    tell("unix", socket(AF_UNIX, SOCK_STREAM, 0));
}

static void try_connect(const char *what, const char *name, int abstract)
{
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    strncpy(to.sun_path + abstract, name, sizeof to.sun_path - 2);
    socklen_t size = offsetof(struct sockaddr_un, sun_path) + abstract + strlen(name) + !abstract;
    tell(what, connect(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&to, size));
}

/* ARGUMENT: the name of an abstract socket that somebody outside listens on. */
static void unix_sockets(char **argument)
{
    try_connect("abstract", argument[0], 1);
    try_connect("system bus", "/run/dbus/system_bus_socket", 0);
    try_connect("journal", "/run/systemd/journal/stdout", 0);
    struct sockaddr_un own = {.sun_family = AF_UNIX, .sun_path = "/out/socket"};
    tell("bind in /out", bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&own, sizeof own));
}

/* ---- who it is ---- */

static void identity(char **)
{
    struct {
        uint32_t version;
        int pid;
    } head = {0x20080522, 0};
    memset(memory, 0xff, 24);
    TRY(setuid, 0);
    TRY(setgid, 0);
    TRY(setreuid, 0, 0);
    TRY(setresuid, 0, 0, 0);
    TRY(setresgid, 0, 0, 0);
    TRY(setgroups, 0, 0);
    TRY(setfsuid, 0);
    TRY(capset, &head, memory);
    int file = open("/scratch/own", O_CREAT | O_RDWR, 0600);
    tell("chown", syscall(SYS_fchown, file, 0, 0));
    tell("chmod u+s", fchmod(file, 04755));
    printf("uid %d, gid %d, groups %d\n", getuid(), getgid(), getgroups(0, NULL));
}

static void flags_of(const char *place)
{
    struct statvfs told;
    if (statvfs(place, &told) < 0) {
        tell(place, -1);
        return;
    }
    printf("%s:%s%s%s%s\n", place, told.f_flag & ST_RDONLY ? " ro" : " rw", told.f_flag & ST_NOSUID ? " nosuid" : "",
           told.f_flag & ST_NODEV ? " nodev" : "", told.f_flag & ST_NOEXEC ? " noexec" : "");
}

static void places(char **)
{
    flags_of("/");
    flags_of("/usr");
    flags_of("/scratch");
    flags_of("/out");
    flags_of("/proc");
    flags_of("/dev");
    flags_of("/dev/shm");
    flags_of("/sys");
}

static void nodes(char **)
{
    tell("block device", mknod("/scratch/b", S_IFBLK | 0600, makedev(254, 0)));
    tell("character device", mknod("/scratch/c", S_IFCHR | 0600, makedev(1, 3)));
    tell("fifo", mkfifo("/out/fifo", 0600));
    tell("file", mknod("/scratch/f", S_IFREG | 0600, 0));
}

/* ---- programs ---- */

static int copy_of_itself(const char *path)
{
    int from = open("/usr/bin/hostile", O_RDONLY), to = open(path, O_CREAT | O_TRUNC | O_RDWR, 0755);
    for (ssize_t got; (got = read(from, memory, sizeof memory)) > 0;)
        if (write(to, memory, got) != got)
            exit(1);
    close(from);
    close(to);
    return open(path, O_RDONLY);
}

static void try_exec(const char *path)
{
    char *command[] = {"hostile", "hello", NULL};
    printf("%s: ", path);
    fflush(stdout);
    if (fork() == 0) {
        execv(path, command);
        printf("%s\n", strerrorname_np(errno));
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
}

static void hello(char **)
{
    printf("hello\n");
}

static void exec_written(char **)
{
    int file = copy_of_itself("/scratch/program");
    copy_of_itself("/out/program");
    int script = open("/scratch/script", O_CREAT | O_WRONLY, 0755);
    if (write(script, "#!/usr/bin/hostile hello\n", 25) != 25)
        exit(1);
    close(script);
    try_exec("/scratch/program");
    try_exec("/out/program");
    try_exec("/scratch/script");
    dup2(file, 9);
    try_exec("/proc/self/fd/9");
    unlink("/out/program");
    tell("map executable", (long)mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0));
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, file, 0);
    tell("make executable", mprotect(mapped, 4096, PROT_READ | PROT_EXEC));
    TRY(execveat, file, "", 0, 0, 0x1000 /* AT_EMPTY_PATH */);
    TRY(memfd_create, "program", 0);
    try_exec("/proc/self/exe");
}

/* What a just-in-time compiler needs. */
static void mapexec(char **)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    tell("mmap rwx", page == MAP_FAILED ? -1 : 0);
}

static void crash(char **)
{
    if (chdir("/out") == 0)
        *(volatile int *)8 = 1;
}

static void raise_signal(char **argument)
{
    sleep_ms(LONG_ENOUGH_MS);
    signal(atoi(argument[0]), SIG_DFL);
    kill(getpid(), atoi(argument[0]));
    sleep_ms(1000);
}

#ifdef __x86_64__
static void int80(char **)
{
    long answer = 20; /* getpid of i386; openat of x86_64 would be another story */
    __asm__ volatile("int $0x80" : "+a"(answer) : : "memory");
    tell_number("answered", answer);
}

static void x32(char **)
{
    tell("x32 getpid", syscall(0x40000000 | SYS_getpid));
}
#endif

/* ---- descriptors, scheduling, memory that cannot be paged ---- */

static void fds(char **)
{
    for (int fd = 0; fd < 65536; fd++)
        if (fcntl(fd, F_GETFD) >= 0)
            printf("%d ", fd);
    printf("\n");
}

static void fdexhaust(char **)
{
    long opened = 0;
    while (open("/dev/null", O_RDONLY) >= 0)
        opened++;
    tell("open", -1);
    tell_number("opened", opened);
}

static void scheduling(char **)
{
    struct sched_param realtime = {.sched_priority = 1};
    TRY(sched_setscheduler, 0, SCHED_FIFO, &realtime);
    TRY(sched_setparam, 0, &realtime);
    TRY(sched_setattr, 0, memory, 0);
    TRY(sched_setaffinity, 0, 8, memory);
    TRY(setpriority, PRIO_PROCESS, 0, -20);
    TRY(ioprio_set, 1, 0, 1 << 13);
    TRY(mbind, memory, 4096, 0, 0, 0, 0);
    TRY(move_pages, 0, 0, 0, 0, 0, 0);
}

static void locked(char **)
{
    TRY(mlock, memory, sizeof memory);
    TRY(mlock2, memory, sizeof memory, 0);
    TRY(mlockall, 1);
    TRY(memfd_secret, 0);
    TRY(shmget, 0, 4096, 0600 | 01000);
    TRY(msgget, 0, 0600 | 01000);
    TRY(semget, 0, 1, 0600 | 01000);
    TRY(mq_open, "x", O_CREAT | O_RDWR, 0600, 0);
    TRY(vmsplice, 1, 0, 0, 0);
    tell("map locked", (long)mmap(NULL, 64 * MIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_LOCKED, -1, 0));
    tell("open in /dev/shm", open("/dev/shm/x", O_CREAT | O_RDWR, 0600));
}

static void prctls(char **)
{
    tell("PR_SET_SECCOMP", prctl(PR_SET_SECCOMP, 1, 0, 0, 0));
    tell("PR_CAPBSET_DROP", prctl(PR_CAPBSET_DROP, 0, 0, 0, 0));
    tell("PR_CAP_AMBIENT", prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, 0, 0, 0));
    tell("PR_SET_SECUREBITS", prctl(PR_SET_SECUREBITS, 0, 0, 0, 0));
    tell("PR_SET_KEEPCAPS", prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0));
    tell("PR_SET_CHILD_SUBREAPER", prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0));
    tell("PR_SET_MM", prctl(PR_SET_MM, PR_SET_MM_BRK, memory, 0, 0));
    tell("PR_SET_TIMERSLACK", prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0));
    tell("PR_SET_TSC", prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0));
    tell("PR_SET_NO_NEW_PRIVS off", prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0));
    tell_number("PR_GET_NO_NEW_PRIVS", prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0));
    tell_number("PR_GET_SECCOMP", prctl(PR_GET_SECCOMP, 0, 0, 0, 0));
    long held = 0;
    for (int capability = 0; capability < 64; capability++)
        held += prctl(PR_CAPBSET_READ, capability, 0, 0, 0) == 1;
    tell_number("capabilities in the bounding set", held);
}

/* Nobody but root may look at it any more. */
static void undumpable(char **)
{
    tell("PR_SET_DUMPABLE off", prctl(PR_SET_DUMPABLE, 0, 0, 0, 0));
    sleep_ms(LONG_ENOUGH_MS);
    kill(getpid(), SIGKILL);
}

/* Turns its own streams around, and keeps them. */
static void turn_streams(char **)
{
    tell("read from its output", open("/proc/self/fd/1", O_RDONLY));
    tell("write to its input", open("/proc/self/fd/0", O_WRONLY));
    tell("write to init's output", open("/proc/1/fd/1", O_WRONLY));
}

/* Goes down until its stack is at an end. */
static int recurse(volatile char *above)
{
    volatile char here[4096];
    here[0] = *above;
    return *above == 2 ? 0 : recurse(here) + here[0]; /* it is never 2 */
}

static void overflow(char **)
{
    char top = 1;
    printf("%d\n", recurse(&top));
}

/* ARGUMENT...: paths and what to write to them, in turn. */
static void write_to(char **argument)
{
    for (; argument[0] && argument[1]; argument += 2) {
        int file = open(argument[0], O_WRONLY);
        tell(argument[0], file < 0 ? -1 : write(file, argument[1], strlen(argument[1])));
    }
}

static void rlimits(char **)
{
    static const struct {
        const char *name;
        int which;
    } LIMITS[] = {
        {"core", RLIMIT_CORE},       {"nofile", RLIMIT_NOFILE},         {"memlock", RLIMIT_MEMLOCK},
        {"msgqueue", RLIMIT_MSGQUEUE}, {"sigpending", RLIMIT_SIGPENDING}, {"rtprio", RLIMIT_RTPRIO},
        {"nice", RLIMIT_NICE},
    };
    for (size_t n = 0; n < sizeof LIMITS / sizeof *LIMITS; n++) {
        struct rlimit limit;
        getrlimit(LIMITS[n].which, &limit);
        printf("%s: %ld %ld\n", LIMITS[n].name, (long)limit.rlim_cur, (long)limit.rlim_max);
    }
}

/* ---- files ---- */

static void inodes(char **)
{
    char name[64];
    for (long n = 0;; n++) {
        snprintf(name, sizeof name, "/scratch/%ld", n);
        int file = open(name, O_CREAT | O_WRONLY, 0600);
        if (file < 0)
            break;
        close(file);
    }
    tell("open", -1);
}

/* ARGUMENT: how many. */
static void manyfiles(char **argument)
{
    char name[64];
    for (int n = 0; n < atoi(argument[0]); n++) {
        snprintf(name, sizeof name, "/out/%05d", n);
        close(open(name, O_CREAT | O_WRONLY, 0600));
    }
}

/* ARGUMENT: how deep. */
static void deepdirs(char **argument)
{
    if (chdir("/out") < 0)
        exit(1);
    for (int n = 0; n < atoi(argument[0]); n++)
        if (mkdir("d", 0700) < 0 || chdir("d") < 0)
            exit(1);
    tell("file at the bottom", open("f", O_CREAT | O_WRONLY, 0600));
}

/* ARGUMENT...: stream and how many bytes to write to it, in turn. */
static void say(char **argument)
{
    for (; argument[0] && argument[1]; argument += 2) {
        int stream = atoi(argument[0]);
        memset(memory, 'a' + stream, sizeof memory);
        for (long left = atol(argument[1]); left > 0;) {
            ssize_t said = write(stream, memory, left < (long)sizeof memory ? left : (long)sizeof memory);
            if (said < 0)
                exit(1);
            left -= said;
        }
    }
}

/* Reads one byte of what it is given, and goes on without the rest. */
static void quiet_reader(char **)
{
    char word;
    tell_number("read", read(0, &word, 1));
    close(0);
    sleep_ms(100);
}

static const struct {
    const char *word;
    void (*does)(char **argument);
    int needs;
} WORDS[] = {
    {"forkbomb", forkbomb, 0},
    {"forkcount", forkcount, 0},
    {"fork1", fork1, 0},
    {"membomb", membomb, 0},
    {"membomb_kids", membomb_kids, 0},
    {"sharedbomb", sharedbomb, 0},
    {"hold", hold, 3},
    {"buffers", buffers, 1},
    {"cpukids", cpukids, 0},
    {"cpuflies", cpuflies, 0},
    {"longsleep", longsleep, 0},
    {"stopself", stopself, 0},
    {"daemon", daemon_apart, 0},
    {"daemon_hold", daemon_hold, 0},
    {"closefds", closefds, 0},
    {"ptrace", try_ptrace, 0},
    {"killall", killall, 0},
    {"killgroup", killgroup, 0},
    {"killinit", killinit, 0},
    {"sigstop_parent", sigstop_parent, 0},
    {"namespaces", namespaces, 0},
    {"mounts", mounts, 0},
    {"io_uring", io_uring, 0},
    {"keys", keys, 0},
    {"doors", doors, 0},
    {"unnamed", unnamed, 0},
    {"arguments", arguments, 0},
    {"terminals", terminals, 0},
    {"sockets", sockets, 0},
    {"unix_sockets", unix_sockets, 1},
    {"identity", identity, 0},
    {"places", places, 0},
    {"nodes", nodes, 0},
    {"hello", hello, 0},
    {"exec_written", exec_written, 0},
    {"mapexec", mapexec, 0},
    {"crash", crash, 0},
    {"raise", raise_signal, 1},
#ifdef __x86_64__
    {"int80", int80, 0},
    {"x32", x32, 0},
#endif
    {"fds", fds, 0},
    {"fdexhaust", fdexhaust, 0},
    {"scheduling", scheduling, 0},
    {"locked", locked, 0},
    {"prctls", prctls, 0},
    {"undumpable", undumpable, 0},
    {"turn_streams", turn_streams, 0},
    {"overflow", overflow, 0},
    {"write_to", write_to, 2},
    {"rlimits", rlimits, 0},
    {"inodes", inodes, 0},
    {"manyfiles", manyfiles, 1},
    {"deepdirs", deepdirs, 1},
    {"say", say, 2},
    {"quiet_reader", quiet_reader, 0},
};

int main(int count, char **argument)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) != FILTERED) {
        fprintf(stderr, "there is no system-call filter here, so nothing is tried\n");
        return NO_SANDBOX;
    }
    for (size_t n = 0; count > 1 && n < sizeof WORDS / sizeof *WORDS; n++) {
        if (strcmp(argument[1], WORDS[n].word) == 0 && count - 2 >= WORDS[n].needs) {
            WORDS[n].does(argument + 2);
            return 0;
        }
    }
    return UNKNOWN_WORD;
}
