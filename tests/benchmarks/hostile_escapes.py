"""Hostile programs that reach for the machine's files, programs, network, and for their keeper."""

from __future__ import annotations

from tests.benchmarks.hostile_family import ANY_FAILURE, MARK, STDIO, family, pick


@family(STDIO, *ANY_FAILURE)
def reads_the_host(i: int) -> str:
    path = pick(
        i,
        *("/etc/shadow", "/etc/passwd", "/proc/1/environ", "/root/.bashrc", "/proc/1/cmdline", "/etc/hosts"),
        *("/home", "/work", "/proc/self/mountinfo", "/proc/1/root/etc/passwd", "/sys/class/net", "/var/log"),
    )
    return f"""
    import os
    path = {path!r}
    print(os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read()[:300])
    """


@family(STDIO, *ANY_FAILURE)
def writes_the_host(i: int) -> str:
    path = pick(
        i,
        *("/usr/lib", "/etc", "/usr/bin", "/", "/var/tmp", "/proc/sys/kernel", "/home"),
    )
    return f"""
    import os, json
    for folder in ({path!r}, os.path.dirname(json.__file__), os.path.dirname(os.__file__)):
        try:
            open(os.path.join(folder, '{MARK}-{i}'), 'w').write('x')
            print('written', folder)
        except OSError as error:
            print(error)
    """


@family(STDIO, *ANY_FAILURE)
def links(i: int) -> str:
    target = pick(i, "/etc/passwd", "/proc/1/root", "/usr/lib", "../../../../etc")
    return f"""
    import os
    os.symlink({target!r}, '/tmp/{MARK}-{i}')
    os.link('/proc/self/exe', '/tmp/{MARK}-{i}-hard')
    """


@family(STDIO, *ANY_FAILURE)
def runs_other_programs(i: int) -> str:
    return "import os, subprocess, sys\n" + pick(
        i,
        "os.execv('/bin/sh', ['sh', '-c', 'echo 42'])",
        "subprocess.run(['ls', '/'], check=True)",
        "os.system('echo 42')",
        "os.posix_spawn('/usr/bin/env', ['env'], {})",
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\nprint(1)",
        "os.execv(sys.executable, [sys.executable, '-c', 'import os; print(42, flush=True); os._exit(3)'])",
    )


@family(STDIO, *ANY_FAILURE)
def network(i: int) -> str:
    return "import socket\n" + pick(
        i,
        "socket.create_connection(('127.0.0.1', 22), 2)",
        "socket.create_connection(('8.8.8.8', 53), 2)",
        "print(socket.gethostbyname('localhost'), socket.gethostname())",
        "s = socket.socket(socket.AF_UNIX)\ns.connect('\\0/tmp/.X11-unix/X0')",
        "s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "import urllib.request\nprint(urllib.request.urlopen('http://169.254.169.254/', timeout=2).read())",
        f"s = socket.socket()\ns.bind(('0.0.0.0', {2000 + i}))\ns.listen()\ns.accept()",
    )


@family(STDIO, *ANY_FAILURE)
def out_of_the_box(i: int) -> str:
    call = pick(
        i,
        *(
            "libc.unshare(0x10000000)",
            "libc.unshare(0x20000)",
            "libc.mount(b'x', b'/tmp', b'tmpfs', 0, None)",
        ),
        *("libc.chroot(b'/tmp')", "libc.setns(3, 0)", "libc.ptrace(16, 1, 0, 0)", "libc.setuid(0)"),
        *("libc.umount2(b'/tmp', 2)", "libc.pivot_root(b'/', b'/tmp')", "libc.syscall(321, 0, 0, 0)"),
    )
    return f"""
    import ctypes
    libc = ctypes.CDLL(None, use_errno=True)
    print('reached' if {call} >= 0 else 'refused')
    """


@family(STDIO, *ANY_FAILURE)
def touches_the_supervisor(i: int) -> str:
    return pick(
        i,
        """
        import os
        for at in range(64):
            try:
                with open(f'/proc/1/fd/{at}', 'wb', buffering=0) as f: f.write(b'0 1 0\\n')
            except OSError: pass
        print(42, flush=True)
        os._exit(0)
        """,
        """
        import re
        with open('/proc/1/mem', 'r+b', buffering=0) as memory:
            for line in open('/proc/1/maps'):
                if 'rw-p' in line:
                    start, end = (int(x, 16) for x in line.split()[0].split('-'))
                    memory.seek(start)
                    memory.write(b'\\0' * (end - start))
        print('zeroed')
        """,
        """
        import os
        for at in range(64):
            try:
                with open(f'/proc/1/fd/{at}', 'wb', buffering=0) as f:
                    while True: f.write(b'x' * 65536)
            except OSError: pass
        print('flooded')
        """,
    )
