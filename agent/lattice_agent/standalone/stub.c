/*
 * The program of Lattice's in every container, static and without dependencies:
 *
 *   stub [filter=FILE]           process 1 of a container: reaps whoever loses his parent, until it is killed
 *   stub [filter=FILE] [umask=OCTAL] [soft=NUMBER:VALUE]... DIRECTORY ARGUMENT...
 *                                a task: waits at descriptor 3 until it stands in its cgroup, and becomes the work, with this umask
 *                                and these soft limits (RLIMIT_* by number; -1: none) as far as the hard ones allow
 *
 * The file of `filter` holds a compiled seccomp filter, which is set before anything else. Nobody can trace the stub until then: a
 * program that its user cannot read (mode 0111) is not dumpable.
 *
 * cc -static -Os -s -Wall -Wextra -o stub stub.c
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "signals.h"

enum { GATE = 3, ABANDONED = 125, NOT_EXECUTABLE = 126, NOT_FOUND = 127, MOST = 32 };

#define SCRIPT "/.lattice/script"

extern char **environ;

/* Says one sentence on standard error, and ends with this code. */
static void refuse(int code, const char *what, const char *said, const char *more)
{
	dprintf(2, "lattice: %.200s %s%s\n", what, said, more);
	_exit(code);
}

/* Sets the seccomp filter that a file holds; ends this process where that is not possible, so that nothing runs without it. */
static void set_filter(const char *path)
{
	static struct sock_filter steps[BPF_MAXINSNS + 1];
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = file < 0 ? -1 : read(file, steps, sizeof steps);

	if (got < 0)
		refuse(NOT_EXECUTABLE, path, "cannot be read: ", strerror(errno));
	close(file);
	if (!got || got % (ssize_t)sizeof *steps || got == sizeof steps)
		refuse(NOT_EXECUTABLE, path, "is no filter of system calls", "");
	struct sock_fprog filter = { .len = (unsigned short)(got / (ssize_t)sizeof *steps), .filter = steps };
	if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0UL, &filter))
		refuse(NOT_EXECUTABLE, path, "cannot be set as the filter of system calls: ", strerror(errno));
}

/* Reaps children until it is killed; process 1 has no other task. */
static void hold(void)
{
	sigset_t every;

	sigfillset(&every);
	sigprocmask(SIG_SETMASK, &every, NULL);
	for (;;) {
		while (waitpid(-1, NULL, WNOHANG) > 0)
			;
		int number;
		sigset_t child;
		sigemptyset(&child);
		sigaddset(&child, SIGCHLD);
		sigwait(&child, &number);
	}
}

/* Waits until the shim has moved this process; ends it where the shim is gone, and has the kernel end it with the shim from now on. */
static void pass_gate(void)
{
	struct pollfd gate = { .fd = GATE, .events = 0 };
	char go;
	ssize_t got;

	do
		got = read(GATE, &go, 1);
	while (got < 0 && errno == EINTR);
	if (got != 1)
		_exit(ABANDONED);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (poll(&gate, 1, 0) > 0 && (gate.revents & (POLLHUP | POLLERR | POLLNVAL)))
		_exit(ABANDONED);
	close(GATE);
}

/* Executes the program; returns with the reason in errno, and the path that exists but could not be executed (NULL: none). */
static const char *execute(char **argv, const char *path)
{
	static char tried[4096], found[4096];
	const char *there = NULL;
	int reason = ENOENT;

	if (strchr(argv[0], '/')) {
		execve(argv[0], argv, environ);
		reason = errno;
		there = access(argv[0], F_OK) ? NULL : argv[0];
		errno = reason;
		return there;
	}
	for (const char *part = path, *end; part; part = *end ? end + 1 : NULL) {
		end = strchrnul(part, ':');
		int length = (int)(end - part);
		if (snprintf(tried, sizeof tried, "%.*s%s%s", length, part, length ? "/" : "./", argv[0]) >= (int)sizeof tried)
			continue;
		execve(tried, argv, environ);
		int why = errno;
		if (why == ENOTDIR || (why == ENOENT && access(tried, F_OK)))
			continue;
		reason = why;
		if (!there)
			there = strcpy(found, tried);
		if (why != EACCES && why != ENOENT)
			break;
	}
	errno = reason;
	return there;
}

/* Returns the interpreter that a file names: in its #! line, or a program its loader; NULL: none that can be read. */
static const char *interpreter(const char *path)
{
	static char name[4096];
	Elf64_Ehdr head;
	Elf64_Phdr part;
	int file = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t got = file < 0 ? 0 : pread(file, name, sizeof name - 1, 0);

	name[got > 0 ? got : 0] = 0;
	if (got > 2 && !memcmp(name, "#!", 2)) {
		char *begin = name + 2 + strspn(name + 2, " \t");
		begin[strcspn(begin, " \t\n")] = 0;
		return *begin ? begin : NULL;
	}
	if (got < (ssize_t)sizeof head || memcmp(name, ELFMAG, SELFMAG) || name[EI_CLASS] != ELFCLASS64)
		return NULL;
	memcpy(&head, name, sizeof head);
	for (int number = 0; number < head.e_phnum; number++) {
		off_t at = (off_t)(head.e_phoff + (unsigned long)number * sizeof part);
		if (pread(file, &part, sizeof part, at) != sizeof part)
			break;
		if (part.p_type != PT_INTERP || part.p_filesz >= sizeof name)
			continue;
		got = pread(file, name, part.p_filesz, (off_t)part.p_offset);
		name[got > 0 ? got : 0] = 0;
		return *name ? name : NULL;
	}
	return NULL;
}

/* Sets what an option says. */
static void set(const char *option)
{
	char *end;

	if (!strncmp(option, "umask=", 6)) {
		umask((mode_t)strtoul(option + 6, NULL, 8));
		return;
	}
	int number = (int)strtol(option + 5, &end, 10);
	long long wanted = *end == ':' ? strtoll(end + 1, NULL, 10) : -1;
	struct rlimit limit;
	if (getrlimit(number, &limit))
		return;
	rlim_t soft = wanted < 0 ? RLIM_INFINITY : (rlim_t)wanted;
	limit.rlim_cur = soft > limit.rlim_max ? limit.rlim_max : soft;
	setrlimit(number, &limit);
}

int main(int argc, char **argv)
{
	char *options[MOST];
	int count = 0;

	if (argc > 1 && !strncmp(argv[1], "filter=", 7)) {
		set_filter(*++argv + 7);
		argc--;
	}
	while (argc > 1 && count < MOST && (!strncmp(argv[1], "umask=", 6) || !strncmp(argv[1], "soft=", 5))) {
		options[count++] = *++argv;
		argc--;
	}
	if (argc < 3) {
		prctl(PR_SET_NAME, "lattice-hold");
		hold();
	}
	reset_signals();
	pass_gate();
	setsid();
	while (count)
		set(options[--count]);
	if (getenv("SLURM_PROCID")) {
		char pid[24];
		snprintf(pid, sizeof pid, "%d", (int)getpid());
		setenv("SLURM_TASK_PID", pid, 1);
	}
	if (chdir(argv[1]))
		refuse(NOT_FOUND, argv[1], "cannot be entered as the working directory in the image: ", strerror(errno));
	const char *path = getenv("PATH");
	if (!path)
		path = "/usr/local/bin:/usr/bin:/bin";
	const char *there = execute(argv + 2, path);
	int reason = errno;
	if (!there && reason == ENOENT && !strchr(argv[2], '/')) {
		dprintf(2, "lattice: '%.200s' cannot be executed in the image: %s; it is not in PATH=%.1000s\n", argv[2], strerror(reason), path);
		return NOT_FOUND;
	}
	if (there && reason == ENOENT) {
		const char *missing = interpreter(there);
		there = strcmp(there, SCRIPT) ? there : "the script";
		if (!missing)
			refuse(NOT_FOUND, there, "cannot be executed in the image: ", "the file exists, but not the interpreter that it names");
		dprintf(2, "lattice: %.200s cannot be executed in the image: its interpreter %.1000s is not there\n", there, missing);
		return NOT_FOUND;
	}
	refuse(reason == ENOENT || reason == ENOTDIR ? NOT_FOUND : NOT_EXECUTABLE, argv[2], "cannot be executed in the image: ", strerror(reason));
}
