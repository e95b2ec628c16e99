"""A guest of this machine whose cgroups are v2 alone: QEMU without KVM, Debian's kernel, and the host's own file system, read-only.

Programs: qemu-system-x86, busybox-static, cpio, kmod, dpkg and apt. The kernel's package is downloaded once, extracted, never installed
(`~/.cache/lattice/guest`). What the guest writes goes to memory and is gone with it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lattice" / "guest"
MODULES = ("virtio_pci", "9pnet_virtio", "9p", "overlay", "loop", "squashfs")
DISK_MODULES = ("virtio_blk", "ext4", "quota_v2")
DISK = "/srv"
"""Where the guest has its disk, which outlives it."""

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mkdir -p /proc /lower /upper /host
$b mount -t proc proc /proc
for module in $($b cat /modules/order); do $b insmod /modules/$module; done
$b mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose share /lower || exec $b poweroff -f
$b mount -t tmpfs tmpfs /upper
$b mkdir -p /upper/changes /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/changes,workdir=/upper/work overlay /host || exec $b poweroff -f
$b mount -t proc proc /host/proc
$b mount -t sysfs sysfs /host/sys
$b mount -t devtmpfs devtmpfs /host/dev
$b mkdir -p /host/dev/shm /host/dev/pts
for made in dev/shm tmp run var/tmp; do $b mount -t tmpfs -o mode=1777 tmpfs /host/$made; done
$b mount -t cgroup2 cgroup2 /host/sys/fs/cgroup
$b ifconfig lo up
$b cp /command /host/run/command
$b sh /prepare
$b umount /proc
exec $b switch_root /host $($b cat /next)
"""
SHELL = "/bin/sh /run/command"
SYSTEMD = "/lib/systemd/systemd --unit=guest.target --show-status=no"
FEW_UNITS = """b=/bin/busybox
units=/host/etc/systemd/system
$b rm -rf $units/*.wants /host/.dockerenv /host/run/.containerenv
for unit in systemd-udevd.service systemd-udevd-control.socket systemd-udevd-kernel.socket systemd-udev-trigger.service \
    systemd-remount-fs.service systemd-journal-flush.service systemd-modules-load.service systemd-update-utmp.service \
    systemd-random-seed.service systemd-firstboot.service systemd-machine-id-commit.service dev-hugepages.mount; do
  $b ln -sf /dev/null $units/$unit
done
$b cat > $units/guest.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh /run/command
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
END
$b cat > $units/guest.target <<END
[Unit]
DefaultDependencies=no
Wants=guest.service
END
"""
"""Has systemd start nothing but the command, and what the units that it asks for need."""
MOUNT_DISK = f"/bin/busybox mount -t ext4 /host/dev/vda /host{DISK} || exec /bin/busybox poweroff -f\n"


@dataclass(frozen=True)
class Kernel:
    """A kernel's file, and the folder of its modules."""

    image: Path
    root: Path
    release: str


def kernel() -> Kernel:
    """Debian's kernel of this release, downloaded at the first call."""
    if not (found := sorted(CACHE.glob("*/boot/vmlinuz-*"))):
        package = _run("apt-cache", "depends", "linux-image-amd64").split("Depends: ")[1].split()[0]
        folder = CACHE / package
        (folder / "download").mkdir(parents=True, exist_ok=True)
        _run("apt-get", "download", package, cwd=folder / "download")
        _run("dpkg-deb", "-x", str(next((folder / "download").glob("*.deb"))), str(folder))
        found = sorted(CACHE.glob("*/boot/vmlinuz-*"))
    image = found[-1]
    made = Kernel(image, image.parent.parent, image.name.removeprefix("vmlinuz-"))
    if not (made.root / "lib/modules" / made.release / "modules.dep").exists():
        _run("depmod", "-b", str(made.root), made.release)
    return made


def modules(of: Kernel, names: Sequence[str]) -> list[Path]:
    """The modules that the guest loads, in order."""
    said = [_run("modprobe", "-d", str(of.root), "-S", of.release, "--show-depends", name) for name in names]
    return list(dict.fromkeys(Path(line.split()[1]) for line in "".join(said).splitlines() if line.startswith("insmod ")))


def initial_ramdisk(of: Kernel, folder: Path, script: str, *, systemd: bool, disk: bool) -> Path:
    """An archive with busybox, the modules, and a script that mounts the host's file system, goes there and runs `script`."""
    tree = folder / "initrd"
    shutil.rmtree(tree, ignore_errors=True)
    for directory in ("bin", "modules"):
        (tree / directory).mkdir(parents=True)
    (tree / "bin/busybox").write_bytes(Path("/bin/busybox").read_bytes())
    (tree / "init").write_text(INIT, encoding="utf-8")
    (tree / "command").write_text(script, encoding="utf-8")
    (tree / "prepare").write_text((FEW_UNITS if systemd else "") + (MOUNT_DISK if disk else ""), encoding="utf-8")
    (tree / "next").write_text(SYSTEMD if systemd else SHELL, encoding="utf-8")
    for program in (tree / "bin/busybox", tree / "init"):
        program.chmod(0o755)
    order = modules(of, MODULES + DISK_MODULES if disk else MODULES)
    for module in order:
        (tree / "modules" / module.name).write_bytes(module.read_bytes())
    (tree / "modules/order").write_text("\n".join(module.name for module in order), encoding="utf-8")
    names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*")))
    archive = folder / "initrd.cpio"
    with archive.open("wb") as file:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], input=names.encode(), stdout=file, cwd=tree, check=True)
    return archive


@dataclass(frozen=True)
class Done:
    """What the guest has said, and the exit code of its command; None: it did not come to its end."""

    code: int | None
    console: str


def empty_disk(path: Path, mebibytes: int = 64) -> Path:
    """Makes a disk for guests: a file with an empty ext4."""
    with path.open("wb") as file:
        file.truncate(mebibytes << 20)
    _run("/usr/sbin/mkfs.ext4", "-q", str(path))
    return path


def run(
    command: list[str], folder: Path, *, cwd: Path, systemd: bool = False, disk: Path | None = None, memory_mib: int = 1024,
    cpus: int = 2, sockets: int = 1, within: float = 480.0,
) -> Done:  # fmt: skip
    """Runs one command in a guest, as root, in a directory of the host's file system; the folder is for files of the guest's own.

    `sockets`: the CPUs are dealt to them; more than one: each is a NUMA domain, of cores with two threads. `systemd`: it is the guest's init, and the command a unit. `disk` is mounted at DISK. At the command's end the guest is off at once.
    """
    of = kernel()
    there = f"cd {shlex.quote(str(cwd))} && {shlex.join(command)}"
    script = (
        f"export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8\n{there}\necho GUEST-EXIT $?\n/bin/busybox poweroff -n -f\n"
    )
    argv = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", *_processors(cpus, sockets, memory_mib), "-nodefaults",
        "-no-reboot", "-nographic", "-serial", "stdio", "-kernel", str(of.image),
        "-initrd", str(initial_ramdisk(of, folder, script, systemd=systemd, disk=disk is not None)),
        "-append", "console=ttyS0 quiet panic=-1 cgroup_no_v1=all mitigations=off",
        "-virtfs", "local,path=/,mount_tag=share,readonly=on,security_model=none,multidevs=remap",
        *(() if disk is None else ("-drive", f"file={disk},format=raw,if=virtio,cache=writethrough")),
    ]  # fmt: skip
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=within, check=False)
        console = done.stdout + done.stderr
    except subprocess.TimeoutExpired as late:
        console = (late.stdout or b"").decode(errors="replace") + f"\nit did not end within {within:.0f} s"
    found = re.search(r"^GUEST-EXIT (\d+)", console, re.MULTILINE)
    return Done(int(found[1]) if found else None, console)


def _processors(cpus: int, sockets: int, memory_mib: int) -> list[str]:
    """QEMU's words for CPUs and memory; its own kind of CPU has no threads."""
    words = ["-m", str(memory_mib)]
    if sockets == 1:
        return [*words, "-cpu", "max", "-smp", str(cpus)]
    each = cpus // sockets
    words += ["-cpu", "max,vendor=GenuineIntel", "-smp", f"{cpus},sockets={sockets},cores={each // 2},threads=2"]
    for socket in range(sockets):
        words += ["-object", f"memory-backend-ram,id=memory{socket},size={memory_mib // sockets}M"]
        words += ["-numa", f"node,nodeid={socket},cpus={socket * each}-{socket * each + each - 1},memdev=memory{socket}"]
    return words


def _run(*argv: str, cwd: Path | None = None) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=True, cwd=cwd).stdout
