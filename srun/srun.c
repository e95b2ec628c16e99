/*
 * srun: starts a parallel program in the allocation that it is called from. It carries bytes between its caller and the agent of its node, and
 * decides nothing: the agent reads the options, starts the tasks and says how the launch ended.
 *
 * The agent listens on `socket`, in the directory above the one that this program stands in. Both sides send frames: `>IB`, the length of the
 * payload and its type, then the payload (16 MiB at most); integers are big endian. The agent's own module is standalone/frames.py.
 *
 * Called as `scontrol` it prints names of nodes (scontrol.h).
 * Called as `lattice-mpi-launcher`, a link to it, it is what `mpirun` calls in place of ssh, `[OPTIONS] HOST COMMAND`: then it ends with the
 * mpirun that has called it, and the agent ends what it started.
 *
 * cc -static -Os -s -Wall -Wextra -Werror -o srun srun.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "scontrol.h"

enum frame_type {
	LAUNCH = 1, INPUT = 2, SIGNAL = 3, HAD = 4, OPENED = 5, CONTENT = 6,
	ACCEPTED = 16, OUTPUT = 17, ENDED = 18, SAY = 19, OPEN = 20, ROOM = 21, FINISHED = 22, REFUSED = 23, READ = 24,
};
enum field_tag {
	REQUEST_ID = 1, ARGUMENT = 2, VARIABLE = 3, DIRECTORY = 4, UMASK = 5, SOFT_LIMIT = 6, HAS_INPUT = 7, HAD_BEFORE = 8, ACCEPTED_BEFORE = 9,
};
enum interrupt_flag { INTERRUPT_AT_ONCE = 1, INTERRUPT_ENDS = 2 };
/* Milliseconds that tests choose otherwise (-D), so that none of them depends on how fast its machine is. */
#ifndef INTERRUPT_PAUSE
#define INTERRUPT_PAUSE 1000 /* within which a second Ctrl-C belongs to the first */
#endif
#ifndef SAY_LOST_AFTER
#define SAY_LOST_AFTER 5000
#endif
#ifndef PIPE_GRACE
#define PIPE_GRACE 2000      /* between the SIGPIPE and the SIGKILL that are passed on */
#endif
#ifndef LONGEST_PAUSE
#define LONGEST_PAUSE 250    /* between two tries to reach the agent */
#endif
enum {
	HEADER = 5, LONGEST_PAYLOAD = 16 << 20, MOST_NODES = 65536,
	WINDOW = 65536,              /* input that may be on its way, and is kept until it has arrived */
	INPUT_PIECE = 32768, QUEUE_HIGH = 262144, LONGEST_FILE = 1 << 20,
	PATIENCE = 60000,            /* ms for which a lost agent is waited for */
	MOST_BROKEN = 5, MOST_SIGNALS = 32, ATOMIC_WRITE = 4096,
};

struct buffer { unsigned char *bytes; size_t from, to, room; };
struct target { int fd; int open, nowait, opened_here, said; };

extern char **environ;

#define MPI_LAUNCHER "lattice-mpi-launcher"
static const char *own_name = "srun";
static char launch_directory[PATH_MAX];
static unsigned char request_id[16];
static int connection = -1, at_end, signals_in = -1;
static struct buffer incoming, outgoing;
enum { SOURCE = 0, OWN = 3 };

static struct target targets[4]; /* the source of input, standard output, standard error, and where this program says its own sentences */
static long long lost_since, next_try, said_lost, last_interrupt = LLONG_MIN / 2, last_passed = LLONG_MIN / 2, kill_at;
static int tries, lost_reason, broken, accepted_ever, accepted_now, room_now, interrupt_flags, own_failure;
static uint32_t step;
static unsigned nodes = 1;
static uint64_t had[MOST_NODES];     /* by node the last frame that was written */
static uint16_t dirty[MOST_NODES];   /* nodes whose last frame the agent has not been told */
static unsigned char is_dirty[MOST_NODES];
static unsigned dirty_count;
static int signals[MOST_SIGNALS], signal_count;
static unsigned char input[WINDOW];
static uint64_t input_base, input_end, input_sent, input_room;
static int has_input, input_ended, input_end_sent;
/* Output that was read and not yet written: it lies in `incoming`, whose frame is dropped when it is written. */
static struct { const unsigned char *bytes; size_t left; int stream, numbered; unsigned node; uint64_t number; } pending;

static long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000LL + time.tv_nsec / 1000000;
}

/* Writes to this program's own standard error; gives up where nobody reads it for a second. */
static void write_error(const char *text, size_t length)
{
	while (length) {
		struct pollfd ready = { .fd = targets[OWN].fd, .events = POLLOUT };
		if (poll(&ready, 1, 1000) <= 0)
			return;
		ssize_t written = write(targets[OWN].fd, text, length < ATOMIC_WRITE ? length : ATOMIC_WRITE);
		if (written < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (written <= 0)
			return;
		text += written;
		length -= (size_t)written;
	}
}

/* Says one line on standard error. */
static void say(const char *format, ...)
{
	char line[PATH_MAX + 512];
	va_list arguments;

	va_start(arguments, format);
	int length = snprintf(line, sizeof line, "%s: ", own_name);
	length += vsnprintf(line + length, sizeof line - (size_t)length - 1, format, arguments);
	va_end(arguments);
	if (length > (int)sizeof line - 2)
		length = (int)sizeof line - 2;
	line[length] = '\n';
	write_error(line, (size_t)length + 1);
}

static void *grown(void *bytes, size_t size)
{
	void *more = realloc(bytes, size);

	if (!more) {
		say("error: no memory for %zu bytes", size);
		_exit(1);
	}
	return more;
}

static void reserve(struct buffer *buffer, size_t more)
{
	if (buffer->from && (buffer->from == buffer->to || buffer->to + more > buffer->room)) {
		memmove(buffer->bytes, buffer->bytes + buffer->from, buffer->to - buffer->from);
		buffer->to -= buffer->from;
		buffer->from = 0;
	}
	if (buffer->to + more > buffer->room) {
		buffer->room = (buffer->to + more) * 2 < 65536 ? 65536 : (buffer->to + more) + (buffer->to + more) / 2;
		buffer->bytes = grown(buffer->bytes, buffer->room);
	}
}

static void put(const void *bytes, size_t length)
{
	reserve(&outgoing, length);
	if (length)
		memcpy(outgoing.bytes + outgoing.to, bytes, length);
	outgoing.to += length;
}

/* Puts an integer of this many bytes, big endian. */
static void put_number(uint64_t number, int width)
{
	unsigned char bytes[8];

	for (int at = 0; at < width; at++)
		bytes[at] = (unsigned char)(number >> (8 * (width - 1 - at)));
	put(bytes, (size_t)width);
}

static uint64_t number_at(const unsigned char *bytes, int width)
{
	uint64_t number = 0;

	for (int at = 0; at < width; at++)
		number = number << 8 | bytes[at];
	return number;
}

static void put_header(size_t length, int type)
{
	put_number(length, 4);
	put_number((uint64_t)type, 1);
}

static void put_field(int tag, const void *bytes, size_t length)
{
	put_number((uint64_t)tag, 1);
	put_number(length, 4);
	put(bytes, length);
}

/* Puts the caller's soft limits, by the names that Slurm gives them. */
static void put_limits(void)
{
	static const struct { int resource; const char *name; } limits[] = {
		{ RLIMIT_CPU, "CPU" }, { RLIMIT_FSIZE, "FSIZE" }, { RLIMIT_DATA, "DATA" }, { RLIMIT_STACK, "STACK" }, { RLIMIT_CORE, "CORE" },
		{ RLIMIT_RSS, "RSS" }, { RLIMIT_NPROC, "NPROC" }, { RLIMIT_NOFILE, "NOFILE" }, { RLIMIT_MEMLOCK, "MEMLOCK" }, { RLIMIT_AS, "AS" },
	};
	struct rlimit limit;
	char text[64];

	for (size_t at = 0; at < sizeof limits / sizeof *limits; at++) {
		if (getrlimit(limits[at].resource, &limit))
			continue;
		int length = limit.rlim_cur == RLIM_INFINITY
			? snprintf(text, sizeof text, "%s=unlimited", limits[at].name)
			: snprintf(text, sizeof text, "%s=%llu", limits[at].name, (unsigned long long)limit.rlim_cur);
		put_field(SOFT_LIMIT, text, (size_t)length);
	}
}

/* Puts the request, the same whenever the agent is asked, and what was had of each node when it is asked again. */
static void put_launch(char **arguments)
{
	static char directory[PATH_MAX];
	unsigned char number[10];
	mode_t mask = umask(0);

	umask(mask);
	outgoing.from = outgoing.to = 0;
	put_header(0, LAUNCH);
	put_field(REQUEST_ID, request_id, sizeof request_id);
	for (char **argument = arguments; *argument; argument++)
		put_field(ARGUMENT, *argument, strlen(*argument));
	for (char **variable = environ; *variable; variable++)
		put_field(VARIABLE, *variable, strlen(*variable));
	if (!getcwd(directory, sizeof directory))
		directory[0] = 0;
	put_field(DIRECTORY, directory, strlen(directory));
	put_number(UMASK, 1), put_number(4, 4), put_number(mask, 4);
	put_limits();
	number[0] = (unsigned char)has_input;
	put_field(HAS_INPUT, number, 1);
	for (unsigned node = 0; accepted_ever && node < nodes; node++) {
		if (!had[node])
			continue;
		put_number(HAD_BEFORE, 1), put_number(10, 4), put_number(node, 2), put_number(had[node], 8);
	}
	if (accepted_ever)
		put_number(ACCEPTED_BEFORE, 1), put_number(4, 4), put_number(step, 4);
	size_t length = outgoing.to - HEADER;
	if (length > LONGEST_PAYLOAD) {
		say("error: arguments and variables have %zu bytes, the limit is %d: unset what the tasks do not need", length, LONGEST_PAYLOAD);
		_exit(1);
	}
	for (int at = 0; at < 4; at++)
		outgoing.bytes[at] = (unsigned char)(length >> (8 * (3 - at)));
}

/* Finds the directory of the agent's socket: the parent of the one that this program was started from. */
static void find_directory(void)
{
	ssize_t length = readlink("/proc/self/exe", launch_directory, sizeof launch_directory - 1);

	if (length < 0)
		length = 0;
	launch_directory[length] = 0;
	for (int up = 0; up < 2; up++) {
		char *slash = strrchr(launch_directory, '/');
		if (slash)
			*slash = 0;
	}
	if (!launch_directory[0])
		strcpy(launch_directory, "/");
}

/* Returns a descriptor that is connected to the agent, or -1 with the reason in errno. */
static int connect_agent(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int directory = open(launch_directory, O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (directory < 0)
		return -1;
	snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/socket", directory); /* the path itself may be too long */
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int failed = fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address);
	int reason = errno;
	close(directory);
	if (failed && fd >= 0)
		close(fd);
	errno = reason;
	return failed ? -1 : fd;
}

static _Noreturn void end_outside(void)
{
	say("error: this is no allocation of Lattice's: start tasks with `lattice submit --ntasks=N --wait -- APP`,"
	    " or call srun in a script that `lattice submit SCRIPT` runs");
	_exit(1);
}

/* Drops the connection; it is made again. Of what was read only the frame that is being written stays: the rest is sent again. */
static void lose(int reason)
{
	if (connection >= 0)
		close(connection);
	connection = -1;
	at_end = accepted_now = room_now = 0;
	outgoing.from = outgoing.to = 0;
	incoming.to = incoming.from + (pending.bytes ? HEADER + number_at(incoming.bytes + incoming.from, 4) : 0);
	input_sent = input_base;
	input_end_sent = 0;
	lost_reason = reason;
	if (!lost_since)
		lost_since = now();
	next_try = now() + (reason == EAGAIN ? 20 : tries < 3 ? 10 : tries < 20 ? 50 : LONGEST_PAUSE);
}

static void lose_broken(const char *what)
{
	if (++broken >= MOST_BROKEN) {
		say("error: the agent of this node sent what this srun does not understand (%s)", what);
		_exit(1);
	}
	tries = 20;
	lose(EPROTO);
}

/* Asks the agent again, once it is time; ends where it did not come back. */
static void try_again(char **arguments)
{
	if (connection >= 0 || (lost_since && now() < next_try))
		return;
	long long lost = lost_since ? now() - lost_since : 0;
	if (lost >= PATIENCE) {
		say("error: the agent of this node did not answer for %d s (%s)%s", PATIENCE / 1000, strerror(lost_reason),
		    accepted_ever ? ": the launch is ended" : "");
		_exit(1);
	}
	if (lost >= SAY_LOST_AFTER && said_lost != lost_since) {
		said_lost = lost_since;
		say("the agent of this node does not answer (%s); it is asked again for %d s", strerror(lost_reason), PATIENCE / 1000);
	}
	tries++;
	connection = connect_agent();
	if (connection >= 0) {
		put_launch(arguments);
		return;
	}
	if (!accepted_ever && errno != EAGAIN && errno != ECONNREFUSED && !getenv("LATTICE_JOB_ID"))
		end_outside();
	lose(errno);
}

/* Writes without waiting where the kernel can; else after poll has said that a piece of a page has room. */
static ssize_t write_some(const struct target *target, const void *bytes, size_t length)
{
	struct iovec piece = { (void *)(uintptr_t)bytes, length };

	if (target->nowait) {
		ssize_t written = syscall(SYS_pwritev2, target->fd, &piece, 1UL, -1L, -1L, 8 /* RWF_NOWAIT */);
		if (written >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
			return written;
		struct pollfd ready = { .fd = target->fd, .events = POLLOUT };
		if (poll(&ready, 1, 0) <= 0) {
			errno = EAGAIN;
			return -1;
		}
	}
	return write(target->fd, bytes, target->nowait && length > ATOMIC_WRITE ? ATOMIC_WRITE : length);
}

static ssize_t read_some(const struct target *target, void *bytes, size_t length)
{
	struct iovec piece = { bytes, length };

	if (target->nowait) {
		ssize_t got = syscall(SYS_preadv2, target->fd, &piece, 1UL, -1L, -1L, 8 /* RWF_NOWAIT */);
		if (got >= 0 || (errno != EOPNOTSUPP && errno != ENOSYS && errno != EINVAL))
			return got;
	}
	return read(target->fd, bytes, length);
}

/* Makes a descriptor the target of a stream. */
static void aim(int stream, int fd, int opened_here)
{
	struct stat status;
	struct target target = { .fd = fd, .open = 1, .opened_here = opened_here };

	if (!fstat(fd, &status))
		target.nowait = S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || (stream && S_ISCHR(status.st_mode));
	targets[stream] = target;
}

static void queue_signal(int number)
{
	for (int at = 0; at < signal_count; at++)
		if (signals[at] == number)
			return;
	if (signal_count < MOST_SIGNALS)
		signals[signal_count++] = number;
}

/* Gives up a stream that cannot be written. Where its reader has gone the tasks are told as the kernel tells a program. */
static void give_up(int stream, int reason)
{
	struct target *target = &targets[stream];

	target->open = 0;
	if (stream == OWN)
		return;
	if (reason == EPIPE) {
		queue_signal(SIGPIPE);
		if (!kill_at)
			kill_at = now() + PIPE_GRACE;
		return;
	}
	if (target->said++)
		return;
	own_failure = 1;
	say("error: standard %s cannot be written, what follows is lost: %s", stream == 1 ? "output" : "error", strerror(reason));
}

/* Notes that a frame of a node was dealt with, so that the agent is told. */
static void note_had(unsigned node, uint64_t number)
{
	if (number > had[node])
		had[node] = number;
	if (!is_dirty[node]) {
		is_dirty[node] = 1;
		dirty[dirty_count++] = (uint16_t)node;
	}
}

/* Drops the first frame of `incoming`. */
static void drop_frame(void)
{
	incoming.from += HEADER + number_at(incoming.bytes + incoming.from, 4);
}

/* Writes what is pending as far as that goes; true where nothing is left. */
static int write_pending(void)
{
	while (pending.bytes && pending.left) {
		struct target *target = &targets[pending.stream];
		if (!target->open)
			break;
		ssize_t written = write_some(target, pending.bytes, pending.left);
		if (written < 0 && errno == EINTR)
			continue;
		if (written < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (written <= 0) {
			give_up(pending.stream, written ? errno : EIO);
			break;
		}
		pending.bytes += written;
		pending.left -= (size_t)written;
	}
	if (pending.bytes) {
		if (pending.numbered)
			note_had(pending.node, pending.number);
		pending.bytes = NULL;
		drop_frame();
	}
	return 1;
}

/* Ends this program as the launch ended, once the files that it opened are written. */
static _Noreturn void finish(int code)
{
	for (int stream = 1; stream <= 2; stream++)
		if (targets[stream].opened_here && (stream == 1 || targets[2].fd != targets[1].fd) && close(targets[stream].fd))
			give_up(stream, errno);
	_exit(code ? code : own_failure);
}

/* Copies a path out of a frame; false for one that cannot be a path. */
static int copy_path(char *path, const unsigned char *bytes, size_t length)
{
	if (!length || length >= PATH_MAX || memchr(bytes, 0, length))
		return 0;
	memcpy(path, bytes, length);
	path[length] = 0;
	return 1;
}

/* Opens a file while signals end this program: a pipe may wait for its other side. */
static int open_patiently(const char *path, int flags)
{
	sigset_t every, before;

	sigemptyset(&every);
	sigprocmask(SIG_SETMASK, &every, &before);
	int fd = open(path, flags | O_CLOEXEC | O_NOCTTY, 0666);
	int reason = errno;
	sigprocmask(SIG_SETMASK, &before, NULL);
	errno = reason;
	return fd;
}

/* Opens the file of a stream (3: of both outputs) as the caller, once, and tells the agent. */
static int take_open(const unsigned char *payload, size_t length)
{
	static int done[4];
	static const char *const names[] = { "stdin", "stdout", "stderr", "stdout" };
	char path[PATH_MAX];
	int reason = 0;

	if (length < 2 || payload[0] > 3 || !copy_path(path, payload + 2, length - 2))
		return 0;
	int stream = payload[0];
	if (!done[stream]) {
		int flags = stream ? O_WRONLY | O_CREAT | (payload[1] ? O_APPEND : O_TRUNC) : O_RDONLY;
		int fd = open_patiently(path, flags);
		reason = fd < 0 ? errno : 0;
		if (reason) {
			say("error: Could not open %s file %s: %s", names[stream], path, strerror(reason));
		} else if (stream == 3) {
			aim(1, fd, 1);
			aim(2, fd, 1);
		} else {
			aim(stream, fd, 1);
			has_input |= !stream;
		}
		done[stream] = !reason;
	}
	put_header(2, OPENED);
	put_number((uint64_t)stream, 1);
	put_number((uint64_t)(reason & 0xff), 1);
	return 1;
}

/* Reads a small file as the caller, and sends it to the agent. */
static int take_read(const unsigned char *payload, size_t length)
{
	char path[PATH_MAX];
	size_t used = 0;
	ssize_t got = 0;

	if (!copy_path(path, payload, length))
		return 0;
	unsigned char *bytes = grown(NULL, LONGEST_FILE + 1);
	int fd = open_patiently(path, O_RDONLY);
	int reason = fd < 0 ? errno : 0;
	while (fd >= 0 && used <= LONGEST_FILE && (got = read(fd, bytes + used, LONGEST_FILE + 1 - used)) > 0)
		used += (size_t)got;
	if (fd >= 0 && got < 0)
		reason = errno;
	else if (used > LONGEST_FILE)
		reason = EFBIG;
	if (fd >= 0)
		close(fd);
	if (reason) {
		used = 0;
		say("error: Could not read %s: %s", path, strerror(reason));
	}
	put_header(1 + used, CONTENT);
	put_number((uint64_t)(reason & 0xff), 1);
	put(bytes, used);
	free(bytes);
	return 1;
}

/* Takes up to which offset input may be sent; what lies a window below has arrived everywhere. */
static int take_room(uint64_t room)
{
	room_now = 1;
	if (room <= input_room)
		return 1;
	uint64_t arrived = room > WINDOW ? room - WINDOW : 0;
	if (arrived > input_end)
		return 0;
	input_room = room;
	if (arrived > input_base) {
		memmove(input, input + (arrived - input_base), input_end - arrived);
		input_base = arrived;
	}
	if (input_sent < input_base)
		input_sent = input_base;
	return 1;
}

/* Takes a numbered frame of a node: false where it has none; `*again` where it was had before. */
static int take_number(const unsigned char *payload, int *again)
{
	unsigned node = (unsigned)number_at(payload, 2);
	uint64_t number = number_at(payload + 2, 8);

	if (node >= nodes || !number)
		return 0;
	*again = number <= had[node];
	if (*again)
		note_had(node, number);
	return 1;
}

static int take_output(const unsigned char *payload, size_t length)
{
	int again = 0;

	if (length < 15 || payload[10] < 1 || payload[10] > 2 || !take_number(payload, &again))
		return 0;
	if (again)
		return 1;
	pending.bytes = payload + 15;
	pending.left = length - 15;
	pending.stream = payload[10];
	pending.numbered = 1;
	pending.node = (unsigned)number_at(payload, 2);
	pending.number = number_at(payload + 2, 8);
	return 1;
}

/* Acts on one frame of the agent's; false where it cannot be one. */
static int take_frame(int type, const unsigned char *payload, size_t length)
{
	int again = 0;

	switch (type) {
	case ACCEPTED:
		if (length < 6 || !number_at(payload + 4, 2))
			return 0;
		step = (uint32_t)number_at(payload, 4);
		nodes = (unsigned)number_at(payload + 4, 2);
		interrupt_flags = length > 6 ? payload[6] : 0;
		accepted_ever = accepted_now = 1;
		return 1;
	case OUTPUT:
		return take_output(payload, length);
	case ENDED:
		if (length != 16 || !take_number(payload, &again))
			return 0;
		if (!again)
			note_had((unsigned)number_at(payload, 2), number_at(payload + 2, 8));
		return 1;
	case SAY:
		pending.bytes = payload;
		pending.left = length;
		pending.stream = OWN;
		pending.numbered = 0;
		return 1;
	case OPEN:
		return take_open(payload, length);
	case READ:
		return take_read(payload, length);
	case ROOM:
		return length == 8 && take_room(number_at(payload, 8));
	case FINISHED:
		if (length != 1)
			return 0;
		finish(payload[0]);
	case REFUSED:
		if (!length)
			return 0;
		say("error: %.*s", (int)(length - 1 > PATH_MAX ? PATH_MAX : length - 1), (const char *)payload + 1);
		_exit(payload[0] ? payload[0] : 1);
	default:
		return 0;
	}
}

/* Acts on every whole frame that has come, until output waits or too much is to be sent. */
static void take_frames(void)
{
	while (write_pending() && connection >= 0 && outgoing.to - outgoing.from < QUEUE_HIGH) {
		size_t there = incoming.to - incoming.from;
		const unsigned char *frame = incoming.bytes + incoming.from;
		if (there < HEADER)
			break;
		uint64_t length = number_at(frame, 4);
		if (length > LONGEST_PAYLOAD) {
			lose_broken("a frame that is too long");
			return;
		}
		if (there - HEADER < length)
			break;
		if (!take_frame(frame[4], frame + HEADER, (size_t)length)) {
			char what[32];
			snprintf(what, sizeof what, "a frame of type %d", frame[4]);
			lose_broken(what);
			return;
		}
		lost_since = 0;
		tries = 0;
		if (!pending.bytes)
			drop_frame();
	}
	if (connection >= 0 && at_end && !pending.bytes && outgoing.to - outgoing.from < QUEUE_HIGH)
		lose(ECONNRESET);
}

/* Puts what is to be told to the agent: what was had, signals, input. */
static void put_news(void)
{
	if (connection < 0 || !accepted_now || outgoing.to - outgoing.from >= QUEUE_HIGH)
		return;
	while (dirty_count) {
		unsigned node = dirty[--dirty_count];
		is_dirty[node] = 0;
		put_header(10, HAD);
		put_number(node, 2);
		put_number(had[node], 8);
	}
	for (int at = 0; at < signal_count; at++) {
		put_header(1, SIGNAL);
		put_number((uint64_t)signals[at], 1);
	}
	signal_count = 0;
	if (!room_now)
		return; /* after a break the nodes may have no room yet */
	while (input_sent < input_end && outgoing.to - outgoing.from < QUEUE_HIGH) {
		size_t length = input_end - input_sent < INPUT_PIECE ? (size_t)(input_end - input_sent) : INPUT_PIECE;
		put_header(8 + length, INPUT);
		put_number(input_sent, 8);
		put(input + (input_sent - input_base), length);
		input_sent += length;
	}
	if (input_ended && !input_end_sent && input_sent == input_end) {
		put_header(8, INPUT);
		put_number(input_end, 8);
		input_end_sent = 1;
	}
}

/* Tells whether input may be read now: there is room for it, and a terminal belongs to this program. */
static int wants_input(void)
{
	if (!has_input || input_ended || !targets[0].open || input_end >= input_room || input_end - input_base >= WINDOW)
		return 0;
	return !isatty(targets[0].fd) || tcgetpgrp(targets[0].fd) == getpgrp();
}

static void read_input(void)
{
	size_t length = WINDOW - (size_t)(input_end - input_base);

	if (length > input_room - input_end)
		length = (size_t)(input_room - input_end);
	ssize_t got = read_some(&targets[0], input + (input_end - input_base), length);
	if (got < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	if (got <= 0)
		input_ended = 1;
	else
		input_end += (uint64_t)got;
}

static void send_outgoing(void)
{
	while (connection >= 0 && outgoing.from < outgoing.to) {
		ssize_t sent = send(connection, outgoing.bytes + outgoing.from, outgoing.to - outgoing.from, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
			outgoing.from = outgoing.to = 0; /* its last words may still be read */
		if (sent < 0)
			return;
		outgoing.from += (size_t)sent;
	}
}

static void receive(void)
{
	reserve(&incoming, 65536);
	ssize_t got = recv(connection, incoming.bytes + incoming.to, incoming.room - incoming.to, MSG_DONTWAIT);
	if (got > 0)
		incoming.to += (size_t)got;
	else if (!got || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR))
		at_end = 1;
}

/* Acts on Ctrl-C: the first one asks for a second, the second is passed on, the third kills. */
static void take_interrupt(void)
{
	long long time = now();

	if (interrupt_flags & INTERRUPT_ENDS || (connection < 0 && time - last_interrupt <= INTERRUPT_PAUSE)) {
		queue_signal(SIGTERM);
		if (connection < 0)
			_exit(128 + SIGINT);
	} else if (time - last_passed <= INTERRUPT_PAUSE) {
		queue_signal(SIGKILL);
	} else if (interrupt_flags & INTERRUPT_AT_ONCE || time - last_interrupt <= INTERRUPT_PAUSE) {
		say("sending Ctrl-C to step %u", step);
		queue_signal(SIGINT);
		last_passed = time;
	} else {
		say("interrupt (one more within 1 sec to abort)");
	}
	last_interrupt = time;
}

static void take_signals(void)
{
	struct signalfd_siginfo got;

	while (read(signals_in, &got, sizeof got) == sizeof got) {
		int number = (int)got.ssi_signo;
		if (!accepted_ever && (number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT))
			_exit(128 + number); /* nothing runs yet: the agent forgets the request */
		if (number == SIGINT)
			take_interrupt();
		else
			queue_signal(number);
	}
}

/* Has the signals that are passed on come by a descriptor; those that the caller ignores stay ignored. */
static void catch_signals(void)
{
	static const int passed[] = { SIGHUP, SIGINT, SIGQUIT, SIGUSR1, SIGUSR2, SIGTERM, SIGCONT, SIGALRM };
	struct sigaction before;
	sigset_t caught;

	sigemptyset(&caught);
	for (size_t at = 0; at < sizeof passed / sizeof *passed; at++)
		if (!sigaction(passed[at], NULL, &before) && before.sa_handler != SIG_IGN)
			sigaddset(&caught, passed[at]);
	signal(SIGPIPE, SIG_IGN);
	sigprocmask(SIG_SETMASK, &caught, NULL);
	signals_in = signalfd(-1, &caught, SFD_CLOEXEC | SFD_NONBLOCK);
}

/* Fills descriptors 0 to 2 that are closed, so that no other takes their place, and notes what the caller's are. */
static void look_at_streams(void)
{
	struct stat status;

	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) >= 0)
			aim(fd, fd, 0);
		else if (open("/dev/null", O_RDWR) != fd)
			_exit(1);
	}
	aim(OWN, fcntl(2, F_DUPFD_CLOEXEC, 3), 0);
	has_input = targets[0].open && !fstat(0, &status) && !(S_ISCHR(status.st_mode) && status.st_rdev == makedev(1, 3));
}

/* Waits until something can be done. */
static void wait_for_news(void)
{
	struct pollfd ready[4] = { { .fd = signals_in, .events = POLLIN }, { .fd = -1 }, { .fd = -1 }, { .fd = -1 } };
	long long until = kill_at;

	if (connection >= 0) {
		int listens = !pending.bytes && !at_end && outgoing.to - outgoing.from < QUEUE_HIGH;
		ready[1].events = (short)((listens ? POLLIN : 0) | (outgoing.from < outgoing.to ? POLLOUT : 0));
		ready[1].fd = connection; /* its end is told though nothing is asked */
	} else if (!until || next_try < until) {
		until = next_try;
	}
	if (pending.bytes) {
		ready[2].fd = targets[pending.stream].fd;
		ready[2].events = POLLOUT;
	}
	if (wants_input()) {
		ready[3].fd = targets[0].fd;
		ready[3].events = POLLIN;
	}
	long long rest = until ? until - now() : -1;
	if (poll(ready, 4, until ? (int)(rest < 0 ? 0 : rest > 1000 ? 1000 : rest) : isatty(targets[0].fd) ? 1000 : -1) < 0)
		return;
	if (ready[0].revents)
		take_signals();
	if (ready[1].revents & POLLOUT)
		send_outgoing();
	if (connection >= 0 && ready[1].revents & (POLLIN | POLLHUP | POLLERR)) {
		if (ready[1].events & POLLIN)
			receive();
		else
			lose(ECONNRESET); /* what lies unread is sent again */
	}
	if (ready[3].revents)
		read_input();
	if (kill_at && now() >= kill_at) {
		queue_signal(SIGKILL);
		kill_at = now() + PATIENCE;
	}
}

/* Takes the name by which it was called; a launcher of MPI is killed with its parent, as nobody else would tell its tasks. */
static void take_name(const char *called)
{
	const char *slash = strrchr(called, '/');
	pid_t parent = getppid();

	if (strcmp(slash ? slash + 1 : called, MPI_LAUNCHER))
		return;
	own_name = MPI_LAUNCHER;
	prctl(PR_SET_PDEATHSIG, (unsigned long)SIGKILL);
	if (getppid() != parent)
		_exit(1);
}

int main(int argc, char **argv)
{
	const char *slash = argc ? strrchr(argv[0], '/') : NULL;

	if (argc && !strcmp(slash ? slash + 1 : argv[0], "scontrol"))
		return run_scontrol(argv);
	if (argc > 0)
		take_name(argv[0]);
	look_at_streams();
	find_directory();
	if (getrandom(request_id, sizeof request_id, 0) != sizeof request_id) {
		say("error: no random numbers: %s", strerror(errno));
		return 1;
	}
	catch_signals();
	for (;;) {
		try_again(argv);
		take_frames();
		put_news();
		send_outgoing();
		wait_for_news();
	}
}
