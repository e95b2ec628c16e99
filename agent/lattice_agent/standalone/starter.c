/*
 * Starts the ranks of a launch on one node for their keeper (`rank_starter.py`), static and without dependencies:
 *
 *   starter FD      forks the ranks that the file FD describes, tells of each through a pipe, and ends
 *
 * A rank is a child of the keeper (CLONE_PARENT), begins in its cgroup, takes the steps of `rank_start.RankStart._become` in their order,
 * and waits at the gate. A step that fails is told by number: the keeper makes the sentence. The keeper is root and writes the
 * description; nothing in it is checked here but its format, by which a program that was replaced meanwhile is told apart.
 *
 * cc -static -Os -s -Wall -Wextra -o starter starter.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/sysmacros.h>
#include <time.h>

#include "signals.h"

#define FORMAT INT64_C(0x315452415453)
#define INTO_CGROUP (UINT64_C(1) << 33)

enum { NOT_UNDERSTOOD = 64, NOT_BEGUN = 127, ABOVE = 16, INHERITED = 3, PROCESSORS = 1 << 16 };
enum { JOIN_SESSION_KEYRING = 1, LINK = 8, SESSION_KEYRING = -3, USER_KEYRING = -4 };

/* The steps of a rank that may fail, in the order of `rank_starter.Step`. */
enum step { BEGIN, PRIVILEGES, DIRECTORY, INPUT, INPUT_OF_KERNEL, OUTPUT, OUTPUT_UNREAD, OUTPUT_UNSUITABLE, ERRORS, ERRORS_UNREAD,
	ERRORS_UNSUITABLE, DESCRIPTORS, PROGRAM, EXECUTE };

struct list { int64_t count; const int64_t *values; };

/* What all ranks of the launch have in common; a text is its place behind `texts`, -1: there is none. */
struct launch {
	int64_t format, texts, ranks, most, keeper, gate, ready, failures, told, cgroup, user, group, umask, bound, truncate, workdir;
	struct list groups, limits, soft, procs, variables;
};

/* One rank; `task_pid` is the variable of its own that holds its pid, -1: none does. */
struct rank {
	int64_t number, out, err, into, inherited, input, output, errors, task_pid;
	struct list processors, argv, variables;
};

struct told { int32_t pid, error; int64_t start; };

/* `struct clone_args` of linux/sched.h. */
struct clone_request { uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls, set_tid, set_tid_size, cgroup; };

static char *description;
static struct launch launch;
static struct rank rank;
static char **words;

static char *text(int64_t at)
{
	return description + launch.texts + at;
}

/* Reads a list behind the cursor. */
static struct list read_list(const int64_t **cursor)
{
	struct list found = { **cursor, *cursor + 1 };

	*cursor += 1 + found.count;
	return found;
}

/* Ends this rank, having told which step of it has failed, and whether the program's file exists. */
static void fail(enum step step, int error, int exists)
{
	char line[96];
	int length = snprintf(line, sizeof line, "%lld %d %d %d\n", (long long)rank.number, step, error, exists);

	_exit(write((int)launch.failures, line, (size_t)length) == length ? NOT_BEGUN : NOT_BEGUN - 1);
}

static void must(int result, enum step step)
{
	if (result < 0)
		fail(step, errno, 0);
}

/* Writes into a file of the kernel's by one call; returns -1 where that fails. */
static int write_file(const char *path, const char *what)
{
	int file = open(path, O_WRONLY | O_CLOEXEC);
	ssize_t done = file < 0 ? -1 : write(file, what, strlen(what));
	int error = errno;

	if (file >= 0)
		close(file);
	errno = error;
	return done < 0 ? -1 : 0;
}

/* Closes all descriptors from `first` to `last`. */
static void close_from(unsigned first, unsigned last)
{
	if (first > last || !syscall(SYS_close_range, first, last, 0))
		return;
	for (unsigned fd = first; fd <= last && fd < 1 << 20; fd++)  /* before Linux 5.9 */
		close((int)fd);
}

/* Closes all descriptors but the standard ones and those of this rank, which are moved up and end with the exec. */
static void close_others(void)
{
	int64_t *own[] = { &rank.out, &rank.err, &rank.into, &rank.inherited, &launch.gate, &launch.ready, &launch.failures };
	enum { OWN = sizeof own / sizeof *own };
	unsigned begin = INHERITED;

	for (;;) {
		unsigned next = UINT_MAX;
		for (int at = 0; at < OWN; at++)
			if (*own[at] >= begin && (unsigned)*own[at] < next)
				next = (unsigned)*own[at];
		if (next == UINT_MAX)
			break;
		close_from(begin, next - 1);
		begin = next + 1;
	}
	close_from(begin, UINT_MAX);
	for (int at = 0; at < OWN; at++) {
		if (*own[at] < 0)
			continue;
		int moved = fcntl((int)*own[at], F_DUPFD_CLOEXEC, ABOVE);
		must(moved, BEGIN);
		close((int)*own[at]);
		*own[at] = moved;
	}
}

/* Joins the cgroups: none of v2 where this process began in it. */
static void join_cgroups(int inside)
{
	for (int64_t at = 0; at < launch.procs.count - !!inside; at++)
		must(write_file(text(launch.procs.values[at]), "0"), BEGIN);
}

/* Sets one limit of the work, as `task_start.raise_limit` or, softly, as `task_start.limit_softly`. */
static void set_limit(int softly, int number, rlim_t wanted)
{
	struct rlimit limit = { wanted, softly ? RLIM_INFINITY : wanted };

	if (!setrlimit(number, &limit))
		return;
	must(getrlimit(number, &limit), BEGIN);
	limit.rlim_cur = wanted > limit.rlim_max ? limit.rlim_max : wanted;
	must(setrlimit(number, &limit), BEGIN);
}

static void set_limits(void)
{
	for (const int64_t *at = launch.limits.values, *end = at + launch.limits.count; at < end; at += 3)
		set_limit((int)at[0], (int)at[1], (rlim_t)at[2]);
}

/* Sets the caller's soft limits as far as the hard ones allow; what the kernel refuses stays as it is. */
static void set_soft_limits(void)
{
	for (const int64_t *at = launch.soft.values, *end = at + launch.soft.count; at < end; at += 2) {
		struct rlimit limit;
		if (getrlimit((int)at[0], &limit))
			continue;
		limit.rlim_cur = (rlim_t)at[1] > limit.rlim_max ? limit.rlim_max : (rlim_t)at[1];
		setrlimit((int)at[0], &limit);
	}
}

static void bind_processors(void)
{
	static unsigned long mask[PROCESSORS / (8 * sizeof(long))];
	enum { BITS = 8 * sizeof *mask };

	if (!rank.processors.count)
		return;
	for (int64_t at = 0; at < rank.processors.count; at++) {
		int64_t number = rank.processors.values[at];
		if (number < 0 || number >= PROCESSORS)
			fail(BEGIN, EINVAL, 0);
		mask[number / BITS] |= 1UL << number % BITS;
	}
	must((int)syscall(SYS_sched_setaffinity, 0, sizeof mask, mask), BEGIN);
}

static void become_user(void)
{
	static gid_t groups[NGROUPS_MAX];

	if (launch.user >= 0) {
		for (int64_t at = 0; at < launch.groups.count && at < NGROUPS_MAX; at++)
			groups[at] = (gid_t)launch.groups.values[at];
		must(setgroups((size_t)launch.groups.count, groups), BEGIN);
		must(setgid((gid_t)launch.group), BEGIN);
		must(setuid((uid_t)launch.user), BEGIN);
	}
	if (write((int)launch.ready, "u", 1) != 1)
		_exit(NOT_BEGUN);
}

static void join_own_keyring(void)
{
	syscall(SYS_keyctl, JOIN_SESSION_KEYRING, NULL);
	syscall(SYS_keyctl, LINK, USER_KEYRING, SESSION_KEYRING);
}

/* Tells whether a file is of a file system of the kernel's own (`streams.KERNEL_FILES`). */
static int is_of_kernel(int fd)
{
	static const unsigned long of_kernel[] = { 0x9FA0, 0x62656572, 0x27E0EB, 0x63677270, 0x64626720, 0x74726163, 0x73636673, 0xCAFE4A11,
		0x62656570, 0xDE5E81E4, 0x6E736673, 0xF97CFF8C, 0x42494E4D, 0x6165676C, 0x65735543 };
	struct statfs found;

	if (fstatfs(fd, &found))
		return 0;
	for (size_t at = 0; at < sizeof of_kernel / sizeof *of_kernel; at++)
		if (((unsigned long)found.f_type & 0xFFFFFFFF) == of_kernel[at])
			return 1;
	return 0;
}

/* Opens a file for standard input, as `rank_start.open_input`. */
static int open_input(const char *path)
{
	int fd = open(path, O_RDONLY | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);

	must(fd, INPUT);
	if (is_of_kernel(fd))
		fail(INPUT_OF_KERNEL, 0, 0);
	return fd;
}

/* Tells whether a file of this status is a regular file, a pipe or /dev/null. */
static int takes_output(const struct stat *found)
{
	return (S_ISCHR(found->st_mode) && found->st_rdev == makedev(1, 3)) || S_ISREG(found->st_mode) || S_ISFIFO(found->st_mode);
}

/* Opens a file for output, as `streams.open_output`; `step` is the first of the three by which it may fail. */
static int open_output(const char *path, enum step step)
{
	struct stat found;
	int flags = O_WRONLY | O_CREAT | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC | (launch.truncate ? O_TRUNC : 0);

	if (!stat(path, &found)) {
		if (!takes_output(&found) && !S_ISDIR(found.st_mode))
			fail(step + 2, 0, 0);
		if (S_ISFIFO(found.st_mode) && faccessat(AT_FDCWD, path, W_OK, AT_EACCESS))
			fail(step, EACCES, 0);
	}
	int fd = open(path, flags, 0644);
	if (fd < 0)
		fail(errno == ENXIO ? step + 1 : step, errno, 0);
	must(fstat(fd, &found), DESCRIPTORS);
	if (!takes_output(&found) || is_of_kernel(fd))
		fail(step + 2, 0, 0);
	return fd;
}

/* Puts standard input, output, errors and the descriptor that is inherited in their places. */
static void place_descriptors(void)
{
	int places[3];

	places[0] = rank.into >= 0 ? (int)rank.into : open_input(rank.input >= 0 ? text(rank.input) : "/dev/null");
	places[1] = rank.out >= 0 ? (int)rank.out : open_output(text(rank.output), OUTPUT);
	places[2] = rank.err >= 0 ? (int)rank.err : rank.errors >= 0 ? open_output(text(rank.errors), ERRORS) : places[1];
	for (int place = 0; place < 3; place++) {
		int flags = fcntl(places[place], F_GETFL);
		must(flags, DESCRIPTORS);
		must(fcntl(places[place], F_SETFL, flags & ~O_NONBLOCK), DESCRIPTORS);
		must(dup2(places[place], place), DESCRIPTORS);
	}
	if (rank.inherited >= 0)
		must(dup2((int)rank.inherited, INHERITED), DESCRIPTORS);
}

/* Fills arguments and variables in; returns the latter. */
static char **fill_words(void)
{
	static char task_pid[40];
	char **next = words, **variables;

	for (int64_t at = 0; at < rank.argv.count; at++)
		*next++ = text(rank.argv.values[at]);
	*next++ = NULL;
	variables = next;
	for (int64_t at = 0; at < launch.variables.count; at++)
		*next++ = text(launch.variables.values[at]);
	snprintf(task_pid, sizeof task_pid, "SLURM_TASK_PID=%d", (int)getpid());
	for (int64_t at = 0; at < rank.variables.count; at++)
		*next++ = at == rank.task_pid ? task_pid : text(rank.variables.values[at]);
	*next = NULL;
	return variables;
}

/* Returns 0 for a program that this process may execute, else why not. */
static int check_program(const char *path)
{
	struct stat found;

	if (stat(path, &found))
		return errno;
	return S_ISDIR(found.st_mode) || access(path, X_OK) ? EACCES : 0;
}

/* Returns the path of the program, as `rank_start.find_program`. */
static const char *find_program(const char *name, char **variables)
{
	static char found[PATH_MAX];
	const char *path = "/usr/local/bin:/usr/bin:/bin";
	int refused = ENOENT;

	if (strchr(name, '/')) {
		int error = check_program(name);
		if (error)
			fail(PROGRAM, error, !access(name, F_OK));
		return name;
	}
	for (; *variables; variables++)
		if (!strncmp(*variables, "PATH=", 5))
			path = *variables + 5;
	for (const char *part = path, *end; part; part = *end ? end + 1 : NULL) {
		end = strchrnul(part, ':');
		int length = (int)(end - part), slash = length && part[length - 1] == '/';
		if (snprintf(found, sizeof found, "%.*s%s%s", length, part, !length ? "./" : slash ? "" : "/", name) >= (int)sizeof found)
			continue;
		int error = check_program(found);
		if (!error)
			return found;
		if (error == EACCES || error == EPERM)
			refused = error;
	}
	fail(PROGRAM, refused, 0);
	return NULL;
}

/* Turns a fresh fork into a rank; the order of the steps is what its security rests on. */
static void become(int inside)
{
	char go = 0;
	ssize_t got;

	close_others();
	join_cgroups(inside);
	write_file("/proc/self/oom_score_adj", "0");
	setsid();
	reset_signals();
	set_limits();
	bind_processors();
	become_user();
	if (launch.bound)
		must(prctl(PR_SET_NO_NEW_PRIVS, 1UL, 0UL, 0UL, 0UL), PRIVILEGES);
	join_own_keyring();
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	umask((mode_t)launch.umask);
	must(chdir(text(launch.workdir)), DIRECTORY);
	place_descriptors();
	char **variables = fill_words();
	set_soft_limits();
	const char *program = find_program(words[0], variables);
	if (write((int)launch.ready, "g", 1) != 1)
		_exit(NOT_BEGUN);
	close((int)launch.ready);
	do
		got = read((int)launch.gate, &go, 1);
	while (got < 0 && errno == EINTR);
	if (got != 1 || go != '1' || getppid() != launch.keeper)
		_exit(NOT_BEGUN);
	execve(program, words, variables);
	int error = errno;
	fail(EXECUTE, error, !access(words[0], F_OK));
}

/* Forks a child of the keeper's, in the cgroup of the ranks where the kernel can; returns its pid, 0 in the child, or -1. */
static int fork_rank(int *inside)
{
	struct clone_request request = { .flags = INTO_CGROUP | CLONE_PARENT, .cgroup = (uint64_t)launch.cgroup };

	*inside = launch.cgroup >= 0;
	if (*inside) {
		long pid = syscall(SYS_clone3, &request, sizeof request);
		if (pid >= 0 || errno == EAGAIN || errno == ENOMEM)
			return (int)pid;
	}
	*inside = 0;
	return (int)syscall(SYS_clone, (unsigned long)(CLONE_PARENT | SIGCHLD), NULL, NULL, NULL, NULL);
}

static void read_rank(const int64_t **cursor)
{
	memcpy(&rank, *cursor, 9 * sizeof(int64_t));
	*cursor += 9;
	rank.processors = read_list(cursor);
	rank.argv = read_list(cursor);
	rank.variables = read_list(cursor);
}

/* Reads what all ranks have in common; returns what follows, NULL: it is of another format. */
static const int64_t *read_launch(const char *fd)
{
	struct stat found;
	int file = atoi(fd);

	if (fstat(file, &found) || found.st_size < 192)
		return NULL;
	description = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, file, 0);
	if (description == MAP_FAILED)
		return NULL;
	close(file);
	const int64_t *cursor = (const int64_t *)(const void *)description;
	if (*cursor != FORMAT)
		return NULL;
	memcpy(&launch, cursor, 16 * sizeof(int64_t));
	cursor += 16;
	launch.groups = read_list(&cursor);
	launch.limits = read_list(&cursor);
	launch.soft = read_list(&cursor);
	launch.procs = read_list(&cursor);
	launch.variables = read_list(&cursor);
	return cursor;
}

int main(int argc, char **argv)
{
	const int64_t *cursor = argc == 2 ? read_launch(argv[1]) : NULL;

	if (!cursor || !(words = calloc((size_t)launch.most, sizeof *words)))
		return NOT_UNDERSTOOD;
	prctl(PR_SET_NAME, "lattice-start");
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (int64_t at = 0; at < launch.ranks && getppid() == launch.keeper; at++) {
		struct timespec now;
		int inside;
		read_rank(&cursor);
		clock_gettime(CLOCK_REALTIME, &now);
		int pid = fork_rank(&inside), error = errno;
		if (!pid)
			become(inside);
		struct told told = { pid, pid < 0 ? error : 0, now.tv_sec * INT64_C(1000000000) + now.tv_nsec };
		if (write((int)launch.told, &told, sizeof told) != sizeof told || pid < 0)
			return 1;
	}
	return 0;
}
