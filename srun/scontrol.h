/*
 * scontrol, as work finds it: the same program under another name. `show hostnames [LIST]` prints the names of a list of nodes, one a line; for
 * all else it becomes the next scontrol on the PATH, such as `lattice compat install` links.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LONGEST_NAME = 1024, LONGEST_PATH = 4096, MOST_NAMES = 1 << 20, MOST_DIGITS = 9 };

/* Prints every name that begins with the first `length` characters of `name` and goes on as `rest`, a list's part, says; false where that does not read. */
static int print_names(char *name, size_t length, const char *rest, size_t left)
{
	static long printed;
	const char *bracket = memchr(rest, '[', left);
	size_t plain = bracket ? (size_t)(bracket - rest) : left;

	if (length + plain >= LONGEST_NAME || memchr(rest, ']', plain))
		return 0;
	memcpy(name + length, rest, plain);
	length += plain;
	if (!bracket)
		return length && ++printed <= MOST_NAMES && printf("%.*s\n", (int)length, name) > 0;
	const char *close = memchr(bracket, ']', left - plain), *at = bracket + 1;
	while (close && at < close) {
		size_t digits = strspn(at, "0123456789"), more = digits;
		const char *end = at + digits;
		if (*end == '-')
			more = strspn(++end, "0123456789"), end += more;
		if (!digits || digits > MOST_DIGITS || !more || more > MOST_DIGITS || (*end != ',' && end != close))
			return 0;
		unsigned long number = strtoul(at, NULL, 10), high = strtoul(end - more, NULL, 10);
		if (high < number)
			return 0;
		for (; number <= high; number++) {
			int added = snprintf(name + length, LONGEST_NAME - length, "%0*lu", (int)digits, number);
			size_t whole = length + (size_t)added;
			if (whole >= LONGEST_NAME || !print_names(name, whole, close + 1, (size_t)(rest + left - close - 1)))
				return 0;
		}
		at = end + (*end == ',');
	}
	return close && at > bracket + 1;
}

/* Prints the names of a list such as `nid[001-003,007],login1`; false where it does not read. */
static int print_list(const char *list)
{
	char name[LONGEST_NAME];

	while (*list) {
		const char *end = list;
		for (int inside = 0; *end && (inside || *end != ','); end++)
			inside = *end == '[' ? 1 : *end == ']' ? 0 : inside;
		if (!print_names(name, 0, list, (size_t)(end - list)))
			return 0;
		list = end + (*end == ',');
	}
	return 1;
}

/*
 * Becomes the scontrol that stands on the PATH behind the last entry with this program, or the first of all where there is none such; returns
 * where there is no other. Each of several goes further along the PATH, so that they never call each other in a circle.
 */
static void become_next(char **argv)
{
	const char *at = getenv("PATH");
	char candidate[LONGEST_PATH], next[LONGEST_PATH] = "";
	struct stat own, found;

	if (!at || stat("/proc/self/exe", &own))
		return;
	for (const char *end; *at; at = end + (*end == ':')) {
		end = at + strcspn(at, ":");
		int length = snprintf(candidate, sizeof candidate, "%.*s/scontrol", (int)(end - at), at);
		if (end == at || length >= LONGEST_PATH || stat(candidate, &found) || !S_ISREG(found.st_mode))
			continue;
		if (found.st_dev == own.st_dev && found.st_ino == own.st_ino)
			*next = 0;
		else if (!*next && !access(candidate, X_OK))
			memcpy(next, candidate, (size_t)length + 1);
	}
	if (*next)
		execv(next, argv);
}

static int run_scontrol(char **argv)
{
	static const char *const lists[] = { "SLURM_JOB_NODELIST", "SLURM_NODELIST", "LATTICE_NODELIST" };

	char **arguments = argv + 1;
	while (*arguments && **arguments == '-')
		arguments++; /* what is printed is the same with all of them */
	const char *verb = *arguments ? arguments[0] : "", *kind = *verb ? arguments[1] : NULL, *list = kind ? arguments[2] : NULL;
	if (strcmp(verb, "show") || !kind || strncmp(kind, "hostnames", 5) || strncmp(kind, "hostnames", strlen(kind))) {
		become_next(argv);
		fprintf(stderr, "scontrol: error: this scontrol knows `show hostnames` alone, and no other is on the PATH:"
			" `lattice compat install DIR` links one; or use `lattice status`, `lattice nodes` and `lattice update`\n");
		return 1;
	}
	if (list && !*list)
		list = NULL; /* of a variable that is not set: the allocation's nodes */
	for (size_t at = 0; !list && at < sizeof lists / sizeof *lists; at++)
		list = getenv(lists[at]);
	if (!list) {
		fprintf(stderr, "scontrol: error: no list of nodes is given, and SLURM_JOB_NODELIST is not set\n");
		return 1;
	}
	setvbuf(stdout, NULL, _IOFBF, 1 << 20);
	if (!print_list(list)) {
		fprintf(stderr, "scontrol: error: %.200s is no list of nodes: write for example nid[001-004,007]\n", list);
		_exit(1); /* nothing of a list that does not read */
	}
	return fflush(stdout) ? 1 : 0;
}
