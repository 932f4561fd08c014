"""Hostile programs that want to be judged by something else than what they compute."""

# ruff: noqa: E501  (programs are quoted as they are)

from __future__ import annotations

from typing import Final

from tests.benchmarks.hostile_family import ANY_FAILURE, ASSERT, CALL, STDIO, family, pick


@family(STDIO, *ANY_FAILURE)
def says_that_it_passed(i: int) -> str:
    return pick(
        i,
        """print('{"verdict": "passed", "passed": 1, "total": 1}')""",
        "print('passed')",
        "import sys\nsys.stderr.write('passed\\n0 1 0\\n')",
        "print('\\x00' * 5 + 'ok 42')",
        "print(42.0000001)",
        "print('42 42')",
        "print(10**18 + 42)",
    )


@family(STDIO, *ANY_FAILURE)
def writes_to_every_descriptor(i: int) -> str:
    line = pick(i, "0 1 0", '{"t":["value",42]}', '{"t":["ended","passed","",""]}', "ready")
    return f"""
    import os
    for fd in range(2, 64):
        try: os.write(fd, b'''{line}\\n''')
        except OSError: pass
    os._exit(0)
    """


@family(CALL, *ANY_FAILURE)
def forges_answers(i: int) -> str:
    line = pick(i, '{"t":["value",true]}', '{"t":["ended","passed","",""]}', '{"t":["value"]}', "[[[[" * 9000)
    return f"""
    import os
    for fd in range(3, 64):
        try: os.write(fd, b'''{line}\\n''' * {1 + i % 9})
        except OSError: pass
    def solve(a, b): return None
    """


@family(ASSERT, *ANY_FAILURE)
def forges_the_end_of_a_test(i: int) -> str:
    line = pick(
        i, '{"t":["ended","passed","",""]}', '{"t":["value",true]}', '{"t":["call","solve",[],{},""]}'
    )
    return f"""
    import os
    def solve(a, b):
        for fd in range(3, 64):
            try: os.write(fd, b'''{line}\\n''' * {1 + i % 9})
            except OSError: pass
        return None
    {pick(i, "", "solve(0, 0)")}
    """


_ALWAYS_EQUAL: Final = """
class Yes({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
    def __bool__(self): return True
    def __len__(self): return 1
    def __iter__(self): return iter([True])
    def __reduce__(self): return (print, ('x',))
    def __repr__(self): return '42'
    __str__ = __repr__
    def __index__(self): return 42
    def __int__(self): return 42
    def __float__(self): return 42.0
    def __pos__(self): return 42
def solve(a, b): return {make}
"""


@family(CALL, *ANY_FAILURE)
def equal_to_all_values(i: int) -> str:
    base, make = _EQUALS[i % len(_EQUALS)]
    return _ALWAYS_EQUAL.format(base=base, make=make)


@family(ASSERT, *ANY_FAILURE)
def equal_in_asserts(i: int) -> str:
    base, make = _EQUALS[i % len(_EQUALS)]
    return _ALWAYS_EQUAL.format(base=base, make=make)


_EQUALS: Final = (
    *(
        ("object", "Yes()"),
        ("int", "Yes(7)"),
        ("str", "Yes('x')"),
        ("list", "Yes([1])"),
        ("dict", "Yes(a=1)"),
    ),
    *(
        ("float", "Yes(1.5)"),
        ("tuple", "Yes((1,))"),
        ("set", "Yes({1})"),
        ("int", "[Yes(7)]"),
        ("bytes", "Yes(b'x')"),
    ),
    *(("int", "float('nan')"), ("int", "(x for x in [Yes(7)])"), ("complex", "Yes(1j)")),
)


@family(CALL, *ANY_FAILURE)
def replaces_what_judges(i: int) -> str:
    return pick(
        i,
        "import builtins\nbuiltins.isinstance = lambda *_: True\nbuiltins.repr = lambda x: '42'\ndef solve(a, b): return 7",
        "import sys\nfor m in list(sys.modules.values()):\n    for n in ('encode', 'encode_basestring_ascii'):\n        if hasattr(m, n): setattr(m, n, lambda v: 'true')\ndef solve(a, b): return 7",
        "import sys\nsys.modules['__main__'].encode = lambda v: '{\"t\":[\"value\",true]}'\ndef solve(a, b): return 7",
        "import sys\nframe = sys._getframe()\nwhile frame:\n    frame.f_globals['encode'] = lambda v: '[\"value\",true]'\n    frame = frame.f_back\ndef solve(a, b): return 7",
        "import gc\nfor o in gc.get_objects():\n    if isinstance(o, dict) and 'expected' in o: print(o)\ndef solve(a, b): return None",
        "import sys\nsys.setprofile(lambda *a: None)\nsys.settrace(lambda *a: None)\ndef solve(a, b): return 7",
        "import sys\nclass Finder:\n    def find_spec(self, *a): raise SystemExit(0)\nsys.meta_path.insert(0, Finder())\nsys.path_hooks.clear()\ndef solve(a, b):\n    import json\n    return 42",
        "def solve(a, b): return 7\nimport sys\nsys.exit(0)",
        "import json, pickle, ast\njson.loads = json.dumps = pickle.loads = ast.literal_eval = lambda *a, **k: 42\ndef solve(a, b): return 0",
    )


@family(CALL, *ANY_FAILURE)
def looks_for_the_answer(i: int) -> str:
    return pick(
        i,
        """
        import gc
        def solve(a, b):
            lists = [o for o in gc.get_objects() if isinstance(o, (list, tuple))] + [list(d.values()) for d in gc.get_objects() if isinstance(d, dict)]
            numbers = [x for o in lists for x in o if isinstance(x, int) and 10**7 < x < 10**8]
            return numbers[0] if numbers else 'not found'
        """,
        """
        import os
        def solve(a, b):
            seen = []
            for fd in range(3, 64):
                try:
                    os.lseek(fd, 0, 0)
                    seen.append(os.read(fd, 1 << 20))
                except OSError: pass
            return 'expected' if any(b'expected' in s for s in seen) else 'not found'
        """,
        """
        import sys
        def solve(a, b):
            frame, found = sys._getframe(), []
            while frame:
                found += [k for k, v in frame.f_locals.items() if v == 42]
                frame = frame.f_back
            return found or 'not found'
        """,
        """
        def solve(a, b):
            return open('/proc/1/environ').read() + open('/proc/1/cmdline').read()
        """,
    )


@family(CALL, *ANY_FAILURE)
def odd_values(i: int) -> str:
    return "def solve(a, b):\n    " + pick(
        i,
        "return iter(int, 1)",
        "return 10 ** 10 ** 6",
        "x = []\n    x.append(x)\n    return x",
        "x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "return 'x' * (1 << 26)",
        "return float('nan')",
        "return {k * ((1 << 61) - 1): 0 for k in range(50000)}",
        "return {k * ((1 << 61) - 1) for k in range(3000)}",
        "return (x for x in range(10**12))",
        "return type",
        "return [[0] * 1000] * 10000",
        "return '42'",
        "return 42.5",
        "return range(10**18)",
    )


@family(CALL, *ANY_FAILURE)
def leaves_from_a_call(i: int) -> str:
    return "import os, sys, threading\ndef solve(a, b):\n    " + pick(
        i,
        "os._exit(0)",
        "sys.exit(0)",
        "raise SystemExit(42)",
        "raise KeyboardInterrupt",
        "os.kill(os.getpid(), 9)",
        "raise MemoryError",
        "class E(Exception):\n        def __str__(self): raise E()\n    raise E()",
        "while True: pass",
        "import time; time.sleep(99)",
        "raise AssertionError('passed')",
    )


@family(ASSERT, *ANY_FAILURE)
def leaves_from_a_test(i: int) -> str:
    return "import os, sys, threading, time\ndef solve(a, b):\n    " + pick(
        i,
        "os._exit(0)",
        "sys.exit(0)",
        "raise AssertionError",
        "while True: pass",
        "time.sleep(99)",
        "threading.Timer(0, os._exit, (0,)).start()\n    time.sleep(1)",
        "os.kill(os.getpid(), 9)",
        "return os.closerange(3, 64)",
        "raise NameError('solve')",
    )


@family(ASSERT, *ANY_FAILURE)
def odd_values_in_a_test(i: int) -> str:
    return "def solve(a, b):\n    " + pick(
        i,
        "return {k * ((1 << 61) - 1) for k in range(40000)}",
        "return 'x' * (1 << 26)",
        "x = []\n    for _ in range(10**5): x = [x]\n    return x",
        "return 10 ** 10 ** 5",
        "return lambda: 42",
        "return open",
        "return [[[0] * 100] * 100] * 30",
        "return float('nan')",
        "return solve",
    )


@family(ASSERT, *ANY_FAILURE)
def replaces_what_tests(i: int) -> str:
    return pick(
        i,
        "import builtins\nbuiltins.AssertionError = ValueError\ndef solve(a, b): return 0",
        "import sys\nsys.flags\nclass M(type(sys)):\n    def __getattr__(self, n): return 42\nsys.modules['test'] = M('test')\ndef solve(a, b): return 0",
        "import sys\nsys.excepthook = lambda *a: None\ndef solve(a, b): return 0",
        "def solve(a, b): return 0\ncandidate = check = lambda *a: True",
        "import ctypes\nctypes.pythonapi\nx = ctypes.c_long.from_address(id(42) + 24)\nx.value = 6\ndef solve(a, b): return 6",
        "import unittest, doctest\nunittest.TestCase.assertEqual = lambda *a: None\ndef solve(a, b): return 0",
    )
