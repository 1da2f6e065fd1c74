"""What hostile environments try: bodies of a tool, each with how its call must end.

A body that gets what it wants answers a text that begins with `GOT`. `self` has what it may aim at: `dir` (a folder of
the host's that anybody may write to), `canary` (a file there), `port`, `udp`, `unix`, `abstract` (listeners of the
host's) and `pids` (a process of the host's, and the host itself).
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

DENIED = r"PermissionError|Operation not permitted|Permission denied"
MISSING = "ModuleNotFoundError"
NOTHING = r"^answer ''$"
DEAD = "dies at this"
LATE = "past its time"
FULL = "MemoryError"
NO_THREAD = "can't start new thread"


@dataclass(frozen=True)
class Attack:
    """One attempt."""

    body: str
    ends: str
    """Pattern of how the call is told to its caller; a body that is merely wrong (`NameError`) matches none."""
    real: bool = False
    """Succeeds where nothing holds it, and does no harm there: tried there too."""


PRELUDE = '''
import gc, os, sys, time, struct, signal, threading

def classes():
    """Every class of this process."""
    seen, todo = set(), [object]
    while todo:
        for found in type.__subclasses__(todo.pop()):
            if found not in seen:
                seen.add(found)
                todo.append(found)
    return seen

def machine_code():
    """The system call function of the C library, through what is left of ctypes in memory."""
    found = {c.__name__: c for c in classes() if c.__module__ in ("_ctypes", "ctypes")}
    class Library:
        _handle = 0
    class Call(found["CFuncPtr"]):
        _flags_ = 1
        _restype_ = found["c_long"]
    function, long = Call(("syscall", Library())), found["c_long"]
    def raw(*arguments):
        return function(*(long(a) if isinstance(a, int) else a for a in arguments))
    if raw(39) <= 0:
        raise RuntimeError("getpid fails, so this proves nothing")
    return raw

def tried(*attempts):
    """The names of those that succeed; every one must be refused for want of permission."""
    done = []
    for name, attempt in attempts:
        try:
            attempt()
        except PermissionError:
            continue
        done.append(name)
    return "GOT " + " ".join(done) if done else ""

def host_socket():
    frame = sys._getframe()
    while frame is not None:
        if "sock" in frame.f_locals:
            return frame.f_locals["sock"], frame.f_locals.get("number", 0)
        frame = frame.f_back
    raise RuntimeError("no socket in any frame")

def framed(body):
    return struct.pack(">I", len(body)) + body
'''


def source(body: str) -> str:
    """A class whose tool does the attempt."""
    tool = textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8)
    return (
        f"{PRELUDE}\nclass Attack:\n    def __init__(self, state):\n        self.__dict__.update(state)\n\n"
        f"    def attempt(self):\n{tool}\n        return ''\n\n    def alive(self):\n        return 'alive'\n"
    )


FILES = {
    "read a system file": Attack("return 'GOT ' + open('/etc/passwd').read()", DENIED + "|No such file", real=True),
    "read a file of the host": Attack("return 'GOT ' + open(self.canary).read()", DENIED, real=True),
    "write a file": Attack("open(self.dir + '/new', 'w').write('x'); return 'GOT'", DENIED, real=True),
    "append to a file": Attack("open(self.canary, 'a').write('x'); return 'GOT'", DENIED),
    "list folders": Attack(
        "return tried(*((d, lambda d=d: os.listdir(d)) for d in ('/', '/proc', '/tmp', '/usr', self.dir)))", NOTHING
    ),
    "list a folder": Attack("return 'GOT ' + str(os.listdir(self.dir))", DENIED, real=True),
    "look for a file": Attack("os.stat(self.canary); return 'GOT'", DENIED, real=True),
    "walk processes": Attack(
        "return tried(*((p, lambda p=p: os.open('/proc/' + p, 0)) for p in ('self/environ', '1/cmdline', 'self/mem',"
        " 'self/maps', 'self/fd/0', 'kcore', 'sysrq-trigger')))",
        NOTHING,
    ),
    "symbolic link": Attack("os.symlink('/etc/passwd', self.dir + '/link'); return 'GOT'", DENIED, real=True),
    "hard link": Attack("os.link(self.canary, self.dir + '/hard'); return 'GOT'", DENIED),
    "pipe in the file system": Attack("os.mkfifo(self.dir + '/fifo'); return 'GOT'", DENIED, real=True),
    "folder": Attack("os.mkdir(self.dir + '/folder'); return 'GOT'", DENIED, real=True),
    "device": Attack("os.mknod(self.dir + '/dev', 0o020666, os.makedev(1, 1)); return 'GOT'", DENIED),
    "change a file's name, mode, owner, time, length": Attack(
        """
        c = self.canary
        return tried(
            ("rename", lambda: os.rename(c, c + "2")), ("chmod", lambda: os.chmod(c, 0o777)),
            ("chown", lambda: os.chown(c, 1, 1)), ("utime", lambda: os.utime(c, (0, 0))),
            ("truncate", lambda: os.truncate(c, 0)), ("unlink", lambda: os.unlink(c)),
            ("rmdir", lambda: os.rmdir(self.dir)), ("setxattr", lambda: os.setxattr(c, "user.a", b"b")),
        )
        """,
        NOTHING,
    ),
    "change folder and root": Attack(
        'return tried(("chdir", lambda: os.chdir(self.dir)), ("chroot", lambda: os.chroot("/")),'
        ' ("cwd", lambda: os.getcwd()), ("fchdir", lambda: os.fchdir(0)), ("umask", lambda: os.statvfs("/")))',
        NOTHING,
    ),
    "files by other ways": Attack(
        """
        import io, pathlib, codecs, linecache, tokenize
        c = self.canary
        if linecache.getlines(c):
            return "GOT lines"
        return tried(
            ("FileIO", lambda: io.FileIO(c).read()), ("open_code", lambda: io.open_code(c)),
            ("pathlib", lambda: pathlib.Path(c).read_text()), ("codecs", lambda: codecs.open(c)),
            ("tokenize", lambda: tokenize.open(c)), ("O_PATH", lambda: os.open(c, os.O_PATH)),
            ("scandir", lambda: os.scandir(self.dir)), ("readlink", lambda: os.readlink("/proc/self/exe")),
            ("access", lambda: os.stat(c)), ("resolve", lambda: os.lstat(c)),
            ("loader", lambda: __loader__.get_data(c) if False else type(pathlib.__loader__).get_data(None, c)),
        )
        """,
        NOTHING,
    ),
    "shared memory": Attack(
        """
        raw = machine_code()
        calls = {"shmget": (29, 0, 4096, 0o1666), "memfd_create": (319, b"a", 0), "mq_open": (240, b"/a", 66, 438,
            None),
                 "inotify_init": (253,), "fanotify_init": (300, 0, 0), "eventfd": (284, 0), "msgget": (68, 1, 0o1666),
                 "semget": (64, 1, 1, 0o1666), "memfd_secret": (447, 0), "epoll_create": (213, 1), "pipe2": (293,
                 b"1234567890", 0)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "files by raw system calls": Attack(
        """
        raw, path = machine_code(), self.canary.encode()
        calls = {"open": (2, path, 0), "openat": (257, -100, path, 0), "openat2": (437, -100, path, bytes(24), 24),
                 "creat": (85, self.dir.encode() + b"/new", 438), "stat": (4, path, bytes(200)),
                 "statx": (332, -100, path, 0, 0xFFF, bytes(300)), "access": (21, path, 0), "truncate": (76, path, 0),
                 "getdents": (78, 0, bytes(100), 100), "name_to_handle_at": (303, -100, path, bytes(200), bytes(8), 0),
                 "rename": (82, path, path + b"2"), "unlink": (87, path), "getcwd": (79, bytes(100), 100),
                 "acct": (163, path), "dup": (32, 3), "fcntl": (72, 3, 0, 10), "ioctl": (16, 0, 0x5401, bytes(60)),
                 "sendfile": (40, 3, 0, None, 10), "splice": (275, 3, None, 0, None, 10, 0)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
}

SOCKETS = {
    "TCP connection to the host": Attack(
        'import socket; socket.create_connection(("127.0.0.1", self.port), 2); return "GOT"', DENIED, real=True
    ),
    "UDP packet to the host": Attack(
        'import socket; socket.socket(2, 2).sendto(b"x", ("127.0.0.1", self.udp)); return "GOT"', DENIED, real=True
    ),
    "Unix socket of the host": Attack(
        'import socket; socket.socket(1).connect(self.unix); return "GOT"', DENIED, real=True
    ),
    "abstract socket of the host": Attack(
        'import socket; socket.socket(1).connect(chr(0) + self.abstract); return "GOT"', DENIED, real=True
    ),
    "sockets of every family": Attack(
        """
        import socket
        return tried(*((str((f, k)), lambda f=f, k=k: socket.socket(f, k)) for f in (1, 2, 10, 16, 17, 38,
            40) for k in (1, 2, 3, 5)),
                     ("pair", socket.socketpair))
        """,
        NOTHING,
    ),
    "a server of its own": Attack('import socket; socket.create_server(("127.0.0.1", 0)); return "GOT"', DENIED),
    "names and the web": Attack(
        'import socket; socket.getaddrinfo("localhost", 80); socket.gethostbyname("example.org"); return "GOT"',
        DENIED + "|gaierror",
    ),
    "its own socket, turned elsewhere": Attack(
        """
        import socket
        sock, _ = host_socket()
        mine = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=3)
        return tried(
            ("sendto", lambda: mine.sendto(b"", self.unix) and None), ("connect", lambda: mine.connect(self.unix)),
            ("accept", mine.accept), ("option", lambda: mine.setsockopt(1, 7, 1)), ("name", mine.getpeername),
            ("inheritable", lambda: mine.set_inheritable(True)), ("dup", mine.dup),
        )
        """,
        NOTHING + "|is already connected|Permission",
    ),
    "file descriptors over its socket": Attack(
        'import socket, array; sock, _ = host_socket(); sock.sendmsg([b"x"], [(1, 1, array.array("i", [0, 1, 3]))]);'
        ' return "GOT"',
        DENIED,
    ),
    "file descriptors that it inherited": Attack(
        """
        found = []
        for number in [*range(4, 1024), 4096, 65535]:
            for attempt in (lambda: os.write(number, b"x"), lambda: os.read(number, 1)):
                try:
                    attempt()
                    found.append(number)
                except OSError as error:
                    if error.errno != 9:
                        found.append(number)
        return f"GOT {found}" if found else ""
        """,
        NOTHING,
    ),
    "another file descriptor table": Attack(
        """
        raw = machine_code()
        calls = {"pidfd_open": (434, 1, 0), "pidfd_getfd": (438, 0, 3, 0), "pidfd_open host": (434, self.pids[1], 0),
                 "close_range": (436, 3, 4, 2), "recvmsg": (47, 3, bytes(56), 0), "accept4": (288, 3, None, None, 0)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
}

PROCESSES = {
    "fork": Attack("pid = os.fork(); os._exit(0) if pid == 0 else None; return 'GOT'", DENIED, real=True),
    "vfork, clone and clone3": Attack(
        """
        raw = machine_code()
        calls = {"fork": (57,), "vfork": (58,), "clone": (56, 17, None, None, None, None), "clone3": (435, bytes(88),
            88)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "fork bomb": Attack(
        """
        for _ in range(10_000):
            try:
                os.fork()
                return "GOT"
            except PermissionError:
                pass
        """,
        NOTHING,
    ),
    "execute": Attack("os.execv('/bin/sh', ['sh', '-c', 'touch ' + self.dir + '/new']); return 'GOT'", DENIED),
    "a shell": Attack("return 'GOT' if os.system('touch ' + self.dir + '/new') == 0 else ''", NOTHING, real=True),
    "a shell by way of subclasses": Attack(
        """
        for found in ().__class__.__base__.__subclasses__():
            if found.__name__ == "_wrap_close":
                return "GOT" if found.__init__.__globals__["system"]("touch " + self.dir + "/new") == 0 else ""
        raise RuntimeError("no such class")
        """,
        NOTHING,
        real=True,
    ),
    "subprocess": Attack(
        "import subprocess; subprocess.run(['/bin/touch', self.dir + '/new'], check=True); return 'GOT'",
        DENIED,
        real=True,
    ),
    "spawn": Attack("os.posix_spawn('/bin/true', ['true'], {}); return 'GOT'", DENIED, real=True),
    "popen": Attack("os.popen('id').read(); return 'GOT'", DENIED),
    "multiprocessing": Attack(
        "import multiprocessing; multiprocessing.Process(target=print).start(); return 'GOT'", MISSING
    ),
    "thread": Attack("t = threading.Thread(target=print); t.start(); t.join(); return 'GOT'", NO_THREAD, real=True),
    "kill": Attack(
        """
        targets = [*self.pids, os.getppid(), 1, -1, 0]
        return tried(*((str(t), lambda t=t: os.kill(t, 9)) for t in targets if t),
                     ("group", lambda: os.killpg(0, 9)), ("all", lambda: os.kill(-1, 9)))
        """,
        NOTHING,
    ),
    "kill by raw system calls": Attack(
        """
        raw, done = machine_code(), []
        for pid in (*self.pids, 1, 2, -1):
            calls = {"kill": (62, pid, 9), "tkill": (200, pid, 9), "tgkill": (234, pid, pid, 9),
                     "sigqueue": (129, pid, 9, bytes(128)), "pidfd_send_signal": (424, 3, 9, None, 0)}
            done += [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "look into other processes": Attack(
        """
        raw, done = machine_code(), []
        for pid in (*self.pids, 1, 2):
            calls = {"attach": (101, 16, pid, None, None), "seize": (101, 0x4206, pid, None, None),
                     "vm_readv": (310, pid, bytes(16), 1, bytes(16), 1, 0), "vm_writev": (311, pid, bytes(16), 1,
                     bytes(16), 1, 0),
                     "kcmp": (312, pid, pid, 0, 0, 0), "get_robust_list": (274, pid, bytes(8), bytes(8)),
                     "process_madvise": (440, 3, bytes(16), 1, 4, 0)}
            done += [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "priorities and processors": Attack(
        """
        return tried(("nice", lambda: os.nice(-5)), ("priority", lambda: os.setpriority(0, 0, -5)),
                     ("affinity", lambda: os.sched_setaffinity(0, {0})), ("session", os.setsid),
                     ("group", lambda: os.setpgid(0, 0)), ("user", lambda: os.setuid(0)), ("groups",
                         lambda: os.setgroups([0])))
        """,
        NOTHING,
    ),
    "raise its limits": Attack(
        """
        raw, big = machine_code(), struct.pack("QQ", 1 << 60, 1 << 60)
        done = [kind for kind in range(16) if raw(302, 0, kind, big, None) >= 0 or raw(160, kind, big) >= 0]
        return f"GOT {done}" if done else ""
        """,
        NOTHING,
    ),
    "namespaces and mounts": Attack(
        """
        raw = machine_code()
        calls = {"unshare": (272, 0x10000000), "setns": (308, 3, 0), "mount": (165, b"none", b"/", b"tmpfs", 0, None),
                 "umount": (166, b"/", 0), "pivot_root": (155, b"/", b"/"), "chroot": (161, b"/"), "open_tree": (428,
                 -100, b"/", 0),
                 "move_mount": (429, -100, b"/", -100, b"/", 0), "fsopen": (430, b"tmpfs", 0), "mount_setattr": (442,
                 -100, b"/", 0, bytes(32), 32)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "undo the lock": Attack(
        """
        raw, everything = machine_code(), struct.pack("HBBI", 6, 0, 0, 0x7FFF0000)
        calls = {"no_new_privs": (157, 38, 0, 0, 0, 0), "seccomp off": (157, 22, 0, 0, 0, 0), "seccomp": (317, 1, 0,
            everything),
                 "dumpable": (157, 4, 1, 0, 0, 0), "no parent": (157, 1, 0, 0, 0, 0), "ruleset": (444, bytes(24), 24,
                 0),
                 "rule": (445, 3, 1, bytes(12), 0), "restrict": (446, 3, 0), "capset": (126, bytes(8), bytes(24)),
                 "personality": (135, 0x0400000), "arch_prctl": (158, 0x1001, 0), "ambient": (157, 47, 2, 21, 0, 0)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "the kernel's large doors": Attack(
        """
        raw = machine_code()
        calls = {"io_uring_setup": (425, 8, bytes(120)), "bpf": (321, 0, bytes(72), 72), "perf_event_open": (298,
            bytes(120), 0, -1, -1, 0),
                 "userfaultfd": (323, 0), "keyctl": (250, 0, -3, 0), "add_key": (248, b"user", b"a", b"b", 1, -4),
                 "request_key": (249, b"user", b"a", None, 0),
                 "init_module": (175, b"a", 1, b""), "kexec_load": (246, 0, 0, None, 0), "reboot": (169, 0xFEE1DEAD,
                 672274793, 0, 0),
                 "swapon": (167, b"/x", 0), "sethostname": (170, b"x", 1), "settimeofday": (164, bytes(16), None),
                 "syslog": (103, 3, bytes(100), 100),
                 "quotactl": (179, 0, None, 0, None), "iopl": (172, 3), "ioperm": (173, 0, 1, 1), "modify_ldt": (154,
                 0, bytes(16), 16)}
        done = [name for name, call in calls.items() if raw(*call) >= 0]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "memory that can be executed": Attack(
        """
        raw = machine_code()
        page = raw(9, 0, 4096, 3, 0x22, -1, 0)
        if page == -1:
            raise RuntimeError("no memory at all, so this proves nothing")
        calls = {"mmap": (9, 0, 4096, 7, 0x22, -1, 0), "mprotect": (10, page, 4096, 7), "execute only": (10, page,
            4096, 4),
                 "high bits": (9, 0, 4096, 7 | 1 << 40, 0x22, -1, 0), "pkey_mprotect": (329, page, 4096, 7, -1),
                 "shmat": (30, 0, 0, 0o100000)}
        done = [name for name, call in calls.items() if raw(*call) not in (-1,)]
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "numbers of another architecture": Attack(
        """
        raw = machine_code()
        done = [number for number in (0, 2, 39, 56, 57, 59, 257) if raw(0x40000000 | number, 0, 0, 0) >= 0]
        done += [number for number in range(337, 600) if raw(number, 0, 0, 0, 0, 0, 0) >= 0]
        return f"GOT {done}" if done else ""
        """,
        NOTHING,
    ),
}
