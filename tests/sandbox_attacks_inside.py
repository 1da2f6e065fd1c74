"""What hostile environments try inside their worker and over its socket; how they end it, and how they hold it up.

The second half of `sandbox_attacks`, which says how to read it.
"""

from __future__ import annotations

from sandbox_attacks import DEAD, FULL, LATE, MISSING, NOTHING, Attack

INTROSPECTION = {
    "import ctypes": Attack("import ctypes; return 'GOT'", MISSING),
    "import more": Attack(
        """
        done = []
        for name in ("ctypes", "_ctypes", "ctypes.util", "multiprocessing", "asyncio", "ssl", "mmap", "sqlite3",
            "http.client",
                     "agentomnia.runs.run", "agentomnia.task.grade", "agentomnia.cli.main", "pip", "pytest", "venv"):
            try:
                __import__(name)
                done.append(name)
            except ImportError:
                pass
        return "GOT " + " ".join(done) if done else ""
        """,
        NOTHING,
    ),
    "import by path": Attack(
        """
        import importlib.util, importlib.machinery
        sys.path.insert(0, self.dir)
        sys.path_hooks.insert(0, importlib.machinery.FileFinder.path_hook((importlib.machinery.SourceFileLoader,
            [".py"])))
        loader = importlib.machinery.SourceFileLoader("canary", self.canary)
        spec = importlib.util.spec_from_loader("canary", loader)
        done = tried(("load", lambda: loader.exec_module(importlib.util.module_from_spec(spec))),
                     ("data", lambda: loader.get_data(self.canary)),
                     ("extension", lambda: importlib.machinery.ExtensionFileLoader("x",
                         self.canary).create_module(spec)))
        import canary
        return done or "GOT"
        """,
        MISSING + "|ImportError",
    ),
    "encodings that are files": Attack(
        "import codecs; codecs.lookup('../../' + self.canary); return 'GOT'", "LookupError"
    ),
    "environment variables of the host": Attack(
        """
        import posix
        if "canary" in repr(dict(os.environ)).lower() or os.getenv("OMNIA_CANARY") or b"OMNIA_CANARY" in posix.environ:
            return "GOT it"
        return f"GOT {os.environ}" if os.environ else ""
        """,
        NOTHING,
    ),
    "secrets in memory": Attack(
        """
        gc.unfreeze()
        gc.collect()
        wanted, seen, todo, found = "-".join(["secret", "of"]) + " ", set(), gc.get_objects(), []
        todo += [frame.f_locals for frame in sys._current_frames().values()]
        while todo:
            thing = todo.pop()
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            if isinstance(thing, str) and thing.startswith(wanted) and len(thing) > len(wanted):
                found.append(thing)
            if isinstance(thing, bytes) and wanted.encode() in thing and thing != wanted.encode():
                found.append(thing.decode("latin-1"))
            todo += gc.get_referents(thing)
        mine = [f for f in found if self.mark in f]
        if not mine:
            raise RuntimeError("its own secret is not found, so this proves nothing")
        others = [f[:80] for f in found if self.mark not in f]
        return f"GOT {others}" if others else ""
        """,
        NOTHING,
    ),
    "the criterion of its task": Attack(
        """
        frame, found = sys._getframe(), []
        while frame is not None:
            found += [k for k, v in frame.f_locals.items() if "criterion" in k or "Criterion" in type(v).__name__]
            frame = frame.f_back
        found += [c.__name__ for c in classes() if c.__name__ in ("Criterion", "PrivateTask", "Grade")]
        return f"GOT {found}" if found else ""
        """,
        NOTHING,
    ),
    "handlers at the end": Attack(
        """
        import atexit, weakref
        def late(*_):
            os.system("touch " + self.dir + "/new")
            open(self.dir + "/new", "w")
        class Last:
            __del__ = late
        atexit.register(late)
        self.__class__.keep = [Last(), weakref.finalize(self, late)]
        threading._register_atexit(late)
        """,
        NOTHING,
    ),
    "change what everybody uses": Attack(
        """
        import builtins, json, msgpack, copy
        from agentomnia.environment.instance import Instance
        builtins.len = lambda x: 7
        json.dumps = lambda *a, **k: "GOT"
        copy.deepcopy = lambda *a, **k: 1 / 0
        Instance.digest = lambda self: "0" * 64
        for found in classes():
            if found.__name__ in ("Neighbour", "Counter"):
                found.add = found.read = lambda *a, **k: "GOT it"
        """,
        NOTHING + "|EnvironmentFault",
    ),
    "read from the terminal": Attack("return 'GOT' + input()", "EOFError"),
}

TALK = {
    "forge answers to what nobody asked": Attack(
        """
        import msgpack
        sock, number = host_socket()
        for n in range(number + 1, number + 50):
            sock.sendall(framed(msgpack.packb([n, "ok", {"ok": True, "data": "forged"}])))
        """,
        DEAD + "|answer",
    ),
    "forge its own answer twice": Attack(
        """
        import msgpack
        sock, number = host_socket()
        for _ in range(2):
            sock.sendall(framed(msgpack.packb([number, "ok", {"ok": True, "data": "forged"}])))
        """,
        "answer 'forged'|" + DEAD,
    ),
    "bytes that are no frame": Attack("host_socket()[0].sendall(b'\\xff' * 100_000); time.sleep(9)", DEAD),
    "a frame that is too long": Attack(
        "host_socket()[0].sendall(b'\\x7f\\xff\\xff\\xff' + bytes(1000)); time.sleep(9)", DEAD
    ),
    "a frame that is no message": Attack(
        "host_socket()[0].sendall(framed(b'\\xc1') + framed(b'\\xc0') + framed(b'\\x90') + framed(b'')); time.sleep(9)",
        DEAD,
    ),
    "ten thousand lists in each other": Attack(
        "host_socket()[0].sendall(framed(b'\\x91' * 10_000 + b'\\xc0')); time.sleep(9)", DEAD
    ),
    "a length that is not there": Attack(
        "host_socket()[0].sendall(framed(b'\\xdd\\xff\\xff\\xff\\xff')); time.sleep(9)", DEAD
    ),
    "an answer as deep as a reader takes": Attack(
        """
        sock, number = host_socket()
        body = b"\\x93\\xce" + struct.pack(">I",
            number) + b"\\xa2ok\\x82\\xa2ok\\xc3\\xa4data" + b"\\x91" * 800 + b"\\xc0"
        sock.sendall(framed(body))
        time.sleep(9)
        """,
        "answer|EnvironmentFault",
    ),
    "values that JSON has not": Attack(
        """
        sock, number = host_socket()
        head = b"\\x93\\xce" + struct.pack(">I", number) + b"\\xa2ok\\x82\\xa2ok\\xc3\\xa4data"
        moment, other = b"\\xd6\\xff\\x00\\x00\\x00\\x01", b"\\xd4\\x05x"
        sock.sendall(framed(head + b"\\x94" + moment + other + b"\\xcb\\x7f\\xf8" + bytes(6) + b"\\xc4\\x01a"))
        time.sleep(9)
        """,
        "EnvironmentFault",
    ),
    "keys that are no texts": Attack(
        """
        sock, number = host_socket()
        sock.sendall(framed(b"\\x93\\xce" + struct.pack(">I",
            number) + b"\\xa2ok\\x83\\xa2ok\\xc3\\xa4data\\x01\\xc4\\x01a\\x02"))
        time.sleep(9)
        """,
        "EnvironmentFault",
    ),
    "an error without a code": Attack(
        """
        import msgpack
        sock, number = host_socket()
        error = {"code": [], "message": 1, "hint": {}}
        sock.sendall(framed(msgpack.packb([number, "ok", {"ok": False, "error": error}])))
        time.sleep(9)
        """,
        "EnvironmentFault",
    ),
    "statuses of its own": Attack(
        """
        import msgpack
        sock, number = host_socket()
        sock.sendall(framed(msgpack.packb([number, {"a": ["b"]}, {"ok": True, "data": "forged"}])))
        time.sleep(9)
        """,
        "EnvironmentFault",
    ),
    "a flood on its socket": Attack("[host_socket()[0].sendall(bytes(1 << 20)) for _ in range(10_000)]", DEAD),
    "a flood on the standard streams": Attack(
        """
        for number in (0, 1, 2):
            for _ in range(50):
                os.write(number, b"x" * (1 << 20))
        print("x" * (1 << 22))
        sys.stderr.write("y" * (1 << 22))
        """,
        NOTHING,
    ),
    "an answer that is too long": Attack("return 'x' * 9_000_000", "EnvironmentFault.*bytes"),
    "an endless answer": Attack("import itertools; return (x for x in itertools.count())", "EnvironmentFault"),
    "pickles that run when they are read": Attack(
        """
        import pickle
        class Run:
            def __reduce__(self):
                return (os.system, ("touch " + self.dir + "/new",))
        Run.dir = self.dir
        data = pickle.dumps(Run())
        sock, number = host_socket()
        sock.sendall(framed(data))
        time.sleep(9)
        """,
        DEAD,
    ),
    "a pickle as an answer": Attack(
        """
        import pickle
        class Run:
            def __reduce__(self):
                return (open, (self.dir + "/new", "w"))
        Run.dir = self.dir
        return [Run(), pickle.dumps(Run()).decode("latin-1")]
        """,
        "EnvironmentFault",
    ),
    "objects that lie about what they are": Attack(
        """
        class Text(str):
            def encode(self, *a): return b"GOT"
            def __str__(self): return "GOT"
            def __len__(self): return 1 << 40
            __class__ = dict
        class Table(dict):
            def items(self): return iter([("GOT", 1)] * 3)
            def __getitem__(self, key): return "GOT"
            def __deepcopy__(self, memo): raise SystemExit
        class Number(int):
            def __bool__(self): return True
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        return Table(a=Text("b"), c=Number(0))
        """,
        "answer|EnvironmentFault",
    ),
    "an exception that will not be told": Attack(
        """
        class Worse(BaseException):
            def __str__(self): raise self
            __repr__ = __str__
        raise Worse
        """,
        "EnvironmentFault",
    ),
    "an exception with a long story": Attack("raise ValueError('x' * 50_000_000)", "EnvironmentFault"),
    "fault after fault": Attack("raise GeneratorExit", "EnvironmentFault"),
}

ENDS = {
    "exit": Attack("sys.exit(0)", "EnvironmentFault"),
    "exit at once": Attack("os._exit(0)", DEAD),
    "abort": Attack("os.abort()", DEAD),
    "crash": Attack(
        """
        raw = machine_code()
        type(raw.__closure__[0].cell_contents)
        code = (lambda: 0).__code__
        exec(code.replace(co_code=bytes([124, 255] * 4 + [83, 0]), co_nlocals=0, co_varnames=()))
        import marshal
        marshal.loads(b"\\xe3" + bytes(200))
        os._exit(11)
        """,
        DEAD + "|Error",
    ),
    "recursion without an end": Attack(
        """
        sys.setrecursionlimit(10**9)
        class Deep:
            def __getattr__(self, name): return getattr(self, name + "x")
            def __repr__(self): return repr(self)
        repr(Deep())
        """,
        DEAD + "|MemoryError|Recursion",
    ),
    "interrupt": Attack("raise KeyboardInterrupt", "EnvironmentFault"),
    "faulthandler": Attack("import faulthandler; faulthandler._sigsegv()", DEAD + "|" + NOTHING),
    "one large piece of memory": Attack("bytearray(1 << 40); return 'GOT'", FULL),
    "memory, piece by piece": Attack("held = []\nwhile True:\n    held.append(bytearray(1 << 20))", FULL),
    "memory in small objects": Attack(
        "held = []\nwhile True:\n    held.append([held, {}, 'x' * 3000])", FULL + "|" + DEAD
    ),
    "memory that stays": Attack("self.held = 'x' * 30_000_000", NOTHING + "|EnvironmentFault"),
}

BUSY = {
    "a loop": Attack("while True:\n    pass", LATE),
    "a loop in C": Attack("sum(range(10**12))", LATE),
    "a large power": Attack("pow(7, 10**9)", LATE),
    "a hard pattern": Attack("import re; re.match(r'(a+)+$', 'a' * 40 + 'b')", LATE),
    "a long number as text": Attack("sys.set_int_max_str_digits(0); str(1 << 8_000_000)", LATE),
    "swallow every exception": Attack(
        "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass", LATE
    ),
    "stop the clock": Attack("signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True:\n    pass", LATE),
    "answer the clock": Attack("signal.signal(signal.SIGALRM, lambda *_: None)\nwhile True:\n    pass", LATE),
    "be deaf": Attack("signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True:\n    pass", LATE),
    "sleep": Attack("time.sleep(600)", LATE),
    "a lock held twice": Attack("lock = threading.Lock(); lock.acquire(); lock.acquire()", LATE),
    "hold on with finally": Attack(
        "def f():\n    try:\n        while True:\n            pass\n    finally:\n        f()\nf()",
        LATE + "|Recursion|" + DEAD,
    ),
    "a frame that never ends": Attack(
        "host_socket()[0].sendall(b'\\x00\\x00\\xff\\xffabc')\nwhile True:\n    pass", "time|dies"
    ),
    "listen to its own socket": Attack("host_socket()[0].recv(1 << 20)", LATE),
}
"""To be tried under short limits."""

AT_LOAD = {
    "loop": "while True:\n    pass",
    "exit": "import os; os._exit(0)",
    "fork": "import os; os.fork()",
    "memory": "held = bytearray(1 << 40)",
    "shell": "import os; assert os.system('touch /tmp/omnia-shell') == 0",
    "deaf loop": "import signal; signal.pthread_sigmask(0, range(1, 65))\nwhile True:\n    pass",
    "constructor": "class Attack:\n    def __init__(self, state):\n        while True:\n            pass",
    "no class": "Attack = 7",
}
"""Whole sources, which never get as far as a tool; to be tried under short limits."""

LIES = {
    "no bytes": "lambda self: 7",
    "no message": "lambda self: b'\\xc1'",
    "no state": "lambda self: b'\\xc0'",
    "values that JSON has not": "lambda self: b'\\x81\\xa1a\\xd6\\xff\\x00\\x00\\x00\\x01'",
    "numbers that are none": "lambda self: b'\\x81\\xa1a\\xcb\\x7f\\xf8' + bytes(6)",
    "other types": "lambda self: b'\\x83\\xa1a\\x90\\xa5clock\\xc0\\xa8counters\\xa1x'",
    "deep": "lambda self: b'\\x81\\xa1a' + b'\\x91' * 900 + b'\\xc0'",
    "a pickle": "lambda self: b'\\x80\\x04\\x95' + bytes(50)",
    "too long": "lambda self: bytes(50_000_000)",
    "an exception": "lambda self: 1 / 0",
    "an exit": "lambda self: os._exit(0)",
    "no time": "lambda self: [None for _ in iter(int, 1)]",
    "a pair": "lambda self: [[{'ok': True, 'data': 1}], None]",
    "too many": "lambda self: [[{'ok': True, 'data': 1}] * 9, None]",
    "a fault of another kind": "lambda self: [[], {'a': [1]}]",
}
"""What a worker may say instead of its state or its answers, as functions of an instance."""
