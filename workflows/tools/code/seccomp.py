"""A filter of system calls for bubblewrap's `--seccomp`, as the kernel's BPF bytes.

A namespace hides what is outside; this list closes what an ordinary program has no use for inside:
memory that no limit of a process counts (shared memory of System V, memory files), looking into other
processes, new namespaces, and the parts of the kernel with the worst record. They fail with EPERM. So
does a change of what SIGCHLD does: where it is ignored, the kernel forgets the CPU time of children.

Layout of `struct sock_filter`, of `struct seccomp_data` and the return values: linux/filter.h,
linux/seccomp.h. Numbers: asm/unistd_64.h and asm-generic/unistd.h.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import Final

_X86_64: Final = {
    "shmget": 29,
    "msgget": 68,
    "semget": 64,
    "ptrace": 101,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "name_to_handle_at": 303,
    "open_by_handle_at": 304,
    "setns": 308,
    "process_vm_readv": 310,
    "process_vm_writev": 311,
    "memfd_create": 319,
    "bpf": 321,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}
_AARCH64: Final = {
    "shmget": 194,
    "msgget": 186,
    "semget": 190,
    "ptrace": 117,
    "mount": 40,
    "umount2": 39,
    "pivot_root": 41,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "unshare": 97,
    "perf_event_open": 241,
    "name_to_handle_at": 264,
    "open_by_handle_at": 265,
    "setns": 268,
    "process_vm_readv": 270,
    "process_vm_writev": 271,
    "memfd_create": 279,
    "bpf": 280,
    "userfaultfd": 282,
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "pidfd_getfd": 438,
    "memfd_secret": 447,
}
_CLONE3: Final = 435  # its flags lie in memory, out of a filter's sight; "not there" makes libc use clone
_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_SIGACTION: Final = {"x86_64": 13, "aarch64": 134}
_SIGCHLD: Final = 17
_AUDIT_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NEW_NAMESPACES: Final = 0x7E020000  # CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT = 0, 4, 16, 24  # arguments have two words


def program(machine: str | None = None) -> bytes | None:
    """The filter for this machine's processor, or None where the call numbers are not known here."""
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        return None
    denied = sorted((_X86_64 if machine == "x86_64" else _AARCH64).values())
    steps = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        (_RETURN, 0, 0, _KILL),  # another architecture's calls have other numbers
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":  # x32, the same calls with one bit more
        steps += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    for number in denied:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.EPERM)]
    steps += [
        (_EQUAL, 0, 1, _CLONE3),
        (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
        # sigaction(SIGCHLD, act): refused unless act is NULL, which only asks
        (_EQUAL, 0, 8, _SIGACTION[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 0, 5, _SIGCHLD),
        (_LOAD, 0, 0, _SECOND_ARGUMENT),
        (_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, _SECOND_ARGUMENT + 4),
        (_EQUAL, 1, 0, 0),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
        # clone(flags): refused with a new namespace
        (_EQUAL, 0, 3, _CLONE[machine]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_ANY_BIT, 0, 1, _NEW_NAMESPACES),
        (_RETURN, 0, 0, _ERRNO | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("HBBI", *step) for step in steps)
