/*
 * lattice-pmix-host: the PMIx server of one launch's ranks on one node. It translates between libpmix, which the ranks' clients call over the
 * loopback interface, and the launch's keeper, which has started it, and decides nothing: fences, data of ranks on other nodes and aborts go
 * through the keeper's exchange. It runs as the work's user, in the cgroup of the ranks, and ends with the keeper.
 *
 * Standard input is a socket to the keeper. Both sides send frames: the length of the payload (four bytes, big endian), its type (one byte),
 * the payload; integers are big endian. The keeper's side is agent/lattice_agent/standalone/pmi/pmix_end.py. Exit code 0: the keeper has
 * closed the socket; 2: it sent what is no frame; 1: libpmix fails. `--check` prints libpmix's version and ends.
 *
 * cc -Os -Wall -Wextra -Werror -o lattice-pmix-host host.c $(pkg-config --cflags --libs pmix) -lpthread
 */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <pmix.h>
#include <pmix_server.h>

#ifndef MEMORY_MIB
#define MEMORY_MIB 512
#endif

enum { /* the types of frames: to the host, then to the keeper */
	JOB = 1, FENCE_DATA = 2, MODEX_DATA = 3, MODEX_ASKED = 4,
	READY = 16, VARIABLES = 17, CONNECTED = 18, FINALIZED = 19, ABORTED = 20, FENCE = 21, MODEX = 22, MODEX_FOUND = 23, SAID = 24, FAILED = 25,
	LOST = 26,
};
enum {
	KEEPER = 0, HEADER = 5, LONGEST_PAYLOAD = 2 << 20, PIECE = 1 << 20,
	MOST_DATA = 64 << 20,  /* of one fence or of one rank */
	MOST_RANKS = 1 << 20, MOST_NODES = 65536, MOST_TEXT = 1000,
	MOST_WAITING = 4096,
	MOST_MEMORY = MEMORY_MIB << 20, RANK_MEMORY = 4 << 10, LOOK_MICROSECONDS = 100000, /* for data of all ranks, and for each rank of the launch */
};

struct data { char *bytes; size_t size; };

/* A request of libpmix that waits for the keeper's answer. */
struct waiting {
	struct waiting *next;
	uint32_t number;
	pmix_modex_cbfunc_t call;
	void *with;
	struct data data;
};

/* A request of the keeper that waits for a rank of this node. */
struct asked { uint32_t number; };

struct node { char *name; uint32_t *ranks; uint32_t count; };

static struct {
	pmix_nspace_t name;
	uint32_t size, here, nodes;
	uint32_t user, group;
	struct node *node;
	char *place;
} job;

static pthread_mutex_t writing = PTHREAD_MUTEX_INITIALIZER, listing = PTHREAD_MUTEX_INITIALIZER;
static struct waiting *waits;
static uint32_t requests, waiting_count;
static int has_job;

/* Bytes */

static void put32(unsigned char *at, uint32_t value)
{
	at[0] = value >> 24, at[1] = value >> 16, at[2] = value >> 8, at[3] = value;
}

static uint32_t get32(const unsigned char *at)
{
	return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static void write_all(const void *bytes, size_t size)
{
	const char *at = bytes;
	while (size) {
		ssize_t done = send(KEEPER, at, size, MSG_NOSIGNAL);
		if (done < 0 && errno == EINTR)
			continue;
		if (done <= 0)
			_exit(0); /* the keeper is gone, and the launch with it */
		at += done, size -= done;
	}
}

/* Sends a frame of up to two pieces; any thread may call it. */
static void tell(int type, const void *head, size_t head_size, const void *body, size_t body_size)
{
	unsigned char header[HEADER];
	put32(header, head_size + body_size);
	header[4] = type;
	pthread_mutex_lock(&writing);
	write_all(header, HEADER);
	write_all(head, head_size);
	write_all(body, body_size);
	pthread_mutex_unlock(&writing);
}

static void tell_number(int type, uint32_t number)
{
	unsigned char head[4];
	put32(head, number);
	tell(type, head, 4, NULL, 0);
}

__attribute__((format(printf, 2, 3))) static void tell_text(int type, const char *format, ...)
{
	char text[MOST_TEXT];
	va_list words;
	va_start(words, format);
	int size = vsnprintf(text, sizeof text, format, words);
	va_end(words);
	tell(type, NULL, 0, text, size < 0 ? 0 : size < (int)sizeof text ? (size_t)size : sizeof text - 1);
}

__attribute__((noreturn, format(printf, 2, 3))) static void fail(int code, const char *format, ...)
{
	char text[MOST_TEXT];
	va_list words;
	va_start(words, format);
	vsnprintf(text, sizeof text, format, words);
	va_end(words);
	tell_text(FAILED, "%s", text);
	_exit(code);
}

/* Sends data in pieces: the number of the request, the state, whether more follows, the piece. */
static void tell_data(int type, uint32_t number, int32_t state, const char *bytes, size_t size)
{
	unsigned char head[9];
	do {
		size_t piece = size > PIECE ? PIECE : size;
		put32(head, number);
		put32(head + 4, (uint32_t)state);
		head[8] = piece < size;
		tell(type, head, sizeof head, bytes, piece);
		bytes += piece, size -= piece;
	} while (size);
}

static void *need(size_t count, size_t size)
{
	void *found = calloc(count ? count : 1, size);
	if (!found)
		fail(1, "there is no memory");
	return found;
}

/* Returns how many bytes of memory this process holds; 0: it cannot be told. */
static size_t resident_memory(void)
{
	size_t all, held = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	if (file && fscanf(file, "%zu %zu", &all, &held) != 2)
		held = 0;
	if (file)
		fclose(file);
	return held * (size_t)sysconf(_SC_PAGESIZE);
}

/* Requests of libpmix that wait for the keeper */

static struct waiting *await(pmix_modex_cbfunc_t call, void *with)
{
	struct waiting *one = NULL;
	pthread_mutex_lock(&listing);
	if (waiting_count < MOST_WAITING) {
		one = need(1, sizeof *one);
		one->number = requests++, one->call = call, one->with = with, one->next = waits;
		waits = one;
		waiting_count++;
	}
	pthread_mutex_unlock(&listing);
	return one;
}

/* Takes the request of this number; with `last` off the list. */
static struct waiting *waiting_for(uint32_t number, int last)
{
	struct waiting **at, *found;
	pthread_mutex_lock(&listing);
	for (at = &waits; *at && (*at)->number != number; at = &(*at)->next)
		;
	found = *at;
	if (found && last) {
		*at = found->next;
		waiting_count--;
	}
	pthread_mutex_unlock(&listing);
	return found;
}

static void release(void *with)
{
	struct waiting *one = with;
	free(one->data.bytes);
	free(one);
}

/* Takes a piece of an answer; with the last one libpmix goes on. An answer that nobody waits for is passed over. */
static void take_data(const unsigned char *payload, size_t size)
{
	if (size < 9)
		fail(2, "an answer of %zu bytes", size);
	struct waiting *one = waiting_for(get32(payload), !payload[8]);
	int32_t state = (int32_t)get32(payload + 4);
	if (!one)
		return;
	size -= 9;
	if (one->data.size + size > MOST_DATA)
		fail(2, "an answer of more than %d bytes", MOST_DATA);
	if (size) {
		char *room = realloc(one->data.bytes, one->data.size + size);
		if (!room)
			fail(1, "there is no memory");
		memcpy(room + one->data.size, payload + 9, size);
		one->data.bytes = room, one->data.size += size;
	}
	if (!payload[8])
		one->call(state, one->data.bytes, one->data.size, one->with, release, one);
}

/* What libpmix calls, in a thread of its own */

static pmix_status_t connected(const pmix_proc_t *proc, void *object, pmix_info_t info[], size_t count, pmix_op_cbfunc_t call, void *with)
{
	(void)object, (void)info, (void)count, (void)call, (void)with;
	tell_number(CONNECTED, proc->rank);
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t finalized(const pmix_proc_t *proc, void *object, pmix_op_cbfunc_t call, void *with)
{
	(void)object, (void)call, (void)with;
	tell_number(FINALIZED, proc->rank);
	return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t aborted(const pmix_proc_t *proc, void *object, int status, const char message[], pmix_proc_t procs[], size_t count,
	pmix_op_cbfunc_t call, void *with)
{
	unsigned char head[8];
	(void)object, (void)procs, (void)count, (void)call, (void)with;
	put32(head, proc->rank);
	put32(head + 4, (uint32_t)status);
	tell(ABORTED, head, sizeof head, message, message ? strnlen(message, MOST_TEXT) : 0);
	return PMIX_OPERATION_SUCCEEDED;
}

/* Says whether these are all ranks of the launch, or some that all stand on this node. */
static int are_all(const pmix_proc_t procs[], size_t count)
{
	return count == 1 ? procs[0].rank == PMIX_RANK_WILDCARD || job.size == 1 : count == job.size;
}

static int are_here(const pmix_proc_t procs[], size_t count)
{
	const struct node *own = &job.node[job.here];
	for (size_t at = 0; at < count; at++) {
		uint32_t place = 0;
		if (procs[at].rank == PMIX_RANK_LOCAL_PEERS)
			continue;
		while (place < own->count && own->ranks[place] != procs[at].rank)
			place++;
		if (place == own->count)
			return 0;
	}
	return 1;
}

static pmix_status_t fence(const pmix_proc_t procs[], size_t count, const pmix_info_t info[], size_t infos, char *bytes, size_t size,
	pmix_modex_cbfunc_t call, void *with)
{
	struct waiting *one;
	(void)info, (void)infos;
	int all = are_all(procs, count);
	if (!all && !are_here(procs, count)) {
		tell_text(SAID, "a PMIx fence of some ranks on several nodes is not served; all ranks of the launch may enter one");
		return PMIX_ERR_NOT_SUPPORTED;
	}
	if (size > MOST_DATA || !(one = await(call, with)))
		return PMIX_ERR_OUT_OF_RESOURCE;
	if (all) {
		tell_data(FENCE, one->number, 0, bytes, size);
		free(bytes);
	} else {
		waiting_for(one->number, 1);
		one->data.bytes = bytes, one->data.size = size;
		call(PMIX_SUCCESS, bytes, size, with, release, one);
	}
	return PMIX_SUCCESS;
}

static pmix_status_t ask_for_data(const pmix_proc_t *proc, const pmix_info_t info[], size_t count, pmix_modex_cbfunc_t call, void *with)
{
	unsigned char head[8];
	struct waiting *one;
	(void)info, (void)count;
	if (strncmp(proc->nspace, job.name, PMIX_MAX_NSLEN) || proc->rank >= job.size)
		return PMIX_ERR_NOT_FOUND;
	if (!(one = await(call, with)))
		return PMIX_ERR_OUT_OF_RESOURCE;
	put32(head, one->number);
	put32(head + 4, proc->rank);
	tell(MODEX, head, sizeof head, NULL, 0);
	return PMIX_SUCCESS;
}

static pmix_status_t spawn(const pmix_proc_t *proc, const pmix_info_t info[], size_t infos, const pmix_app_t apps[], size_t count,
	pmix_spawn_cbfunc_t call, void *with)
{
	(void)info, (void)infos, (void)apps, (void)count, (void)call, (void)with;
	tell_text(SAID, "rank %u asks for more processes (MPI_Comm_spawn), which is not served; start all of them with srun -n", proc->rank);
	return PMIX_ERR_NOT_SUPPORTED;
}

/* Tells that the connection of a rank has broken: the keeper knows whether it has ended. */
static void note_lost(size_t handler, pmix_status_t state, const pmix_proc_t *source, pmix_info_t info[], size_t count, pmix_info_t *results,
	size_t result_count, pmix_event_notification_cbfunc_fn_t call, void *with)
{
	(void)handler, (void)state, (void)info, (void)count, (void)results, (void)result_count;
	if (source && source->rank < job.size && !strncmp(source->nspace, job.name, PMIX_MAX_NSLEN))
		tell_number(LOST, source->rank);
	if (call)
		call(PMIX_EVENT_ACTION_COMPLETE, NULL, 0, NULL, NULL, with);
}

static pmix_server_module_t module = {
	.client_connected2 = connected, .client_finalized = finalized, .abort = aborted, .fence_nb = fence, .direct_modex = ask_for_data,
	.spawn = spawn,
};

/* The keeper's questions about ranks of this node */

static void tell_found(pmix_status_t state, char *bytes, size_t size, void *with)
{
	struct asked *one = with;
	if (state != PMIX_SUCCESS || size > MOST_DATA)
		bytes = NULL, size = 0;
	tell_data(MODEX_FOUND, one->number, state, bytes, size);
	free(one);
}

static void answer_keeper(const unsigned char *payload, size_t size)
{
	pmix_proc_t proc;
	if (size != 8)
		fail(2, "a question of %zu bytes", size);
	struct asked *one = need(1, sizeof *one);
	one->number = get32(payload);
	PMIX_LOAD_PROCID(&proc, job.name, get32(payload + 4));
	pmix_status_t state = proc.rank < job.size ? PMIx_server_dmodex_request(&proc, tell_found, one) : PMIX_ERR_NOT_FOUND;
	if (state != PMIX_SUCCESS)
		tell_found(state, NULL, 0, one);
}

/* The job */

/* Returns the next text of the payload, which ends with a NUL. */
static char *next_text(char **at, char *end)
{
	char *text = *at, *stop = text < end ? memchr(text, 0, end - text) : NULL;
	if (!stop)
		fail(2, "a job that is cut off");
	*at = stop + 1;
	return text;
}

static uint32_t next_number(char **at, char *end, uint32_t most)
{
	char *text = next_text(at, end), *rest;
	unsigned long value = strtoul(text, &rest, 10);
	if (*text < '0' || *text > '9' || *rest || value > most || rest - text > 10)
		fail(2, "a job with the number %.40s", text);
	return value;
}

/* Reads the ranks of a node, numbers with commas, each of which stands once in the launch. */
static void read_ranks(struct node *node, char *text, unsigned char *seen)
{
	uint32_t room = 1;
	for (char *at = text; *at; at++)
		room += *at == ',';
	node->ranks = need(room, sizeof *node->ranks);
	while (*text) {
		char *rest;
		unsigned long rank = strtoul(text, &rest, 10);
		if (*text < '0' || *text > '9' || rank >= job.size || seen[rank] || (*rest && *rest != ',') || (*rest && !rest[1]))
			fail(2, "a job with the ranks %.40s", text);
		seen[rank] = 1;
		node->ranks[node->count++] = rank;
		text = *rest ? rest + 1 : rest;
	}
}

/* Reads the job: name, uid, gid, directory, ranks, place of this node, and name and ranks of each node, all of them texts. */
static void read_job(char *payload, size_t size)
{
	char *at = payload, *end = payload + size;
	uint32_t total = 0;
	char *name = next_text(&at, end);
	if (!*name || strlen(name) > PMIX_MAX_NSLEN)
		fail(2, "a job with a name of %zu bytes", strlen(name));
	strcpy(job.name, name);
	job.user = next_number(&at, end, UINT32_MAX - 1);
	job.group = next_number(&at, end, UINT32_MAX - 1);
	job.place = strdup(next_text(&at, end));
	job.size = next_number(&at, end, MOST_RANKS);
	job.here = next_number(&at, end, MOST_NODES);
	job.node = need(MOST_NODES, sizeof *job.node);
	unsigned char *seen = need(job.size, 1);
	while (at < end) {
		if (job.nodes == MOST_NODES)
			fail(2, "a job on more than %d nodes", MOST_NODES);
		struct node *node = &job.node[job.nodes++];
		char *text = next_text(&at, end);
		if (!*text || strpbrk(text, ",;[]"))
			fail(2, "a job with the node %.40s", text);
		node->name = strdup(text);
		if (!node->name || !job.place)
			fail(1, "there is no memory");
		read_ranks(node, next_text(&at, end), seen);
		total += node->count;
	}
	free(seen);
	if (job.here >= job.nodes || !job.size || total != job.size || !job.node[job.here].count)
		fail(2, "a job of %u ranks, %u of them on %u nodes, at node %u", job.size, total, job.nodes, job.here);
}

/* Makes the list of all nodes' names, or of their ranks, with a separator. */
static char *joined(int of_ranks, const struct node *nodes, uint32_t count)
{
	char *text = NULL;
	size_t size;
	FILE *out = open_memstream(&text, &size);
	if (!out)
		fail(1, "there is no memory");
	for (uint32_t at = 0; at < count; at++) {
		if (at)
			fputc(of_ranks ? ';' : ',', out);
		if (!of_ranks)
			fputs(nodes[at].name, out);
		for (uint32_t place = 0; of_ranks && place < nodes[at].count; place++)
			fprintf(out, "%s%u", place ? "," : "", nodes[at].ranks[place]);
	}
	fclose(out);
	return text;
}

struct done { pthread_mutex_t lock; pthread_cond_t changed; int over; pmix_status_t state; };

static void note_done(pmix_status_t state, void *with)
{
	struct done *done = with;
	pthread_mutex_lock(&done->lock);
	done->state = state, done->over = 1;
	pthread_cond_signal(&done->changed);
	pthread_mutex_unlock(&done->lock);
}

/* Waits for the end of what libpmix has begun; ends this process where it failed. */
static void settle(const char *what, pmix_status_t state, struct done *done)
{
	if (state == PMIX_SUCCESS) {
		pthread_mutex_lock(&done->lock);
		while (!done->over)
			pthread_cond_wait(&done->changed, &done->lock);
		pthread_mutex_unlock(&done->lock);
		state = done->state;
	}
	done->over = 0;
	if (state != PMIX_SUCCESS && state != PMIX_OPERATION_SUCCEEDED)
		fail(1, "%s: %s", what, PMIx_Error_string(state));
}

/* Fills in what PMIx tells of one rank. */
static void describe_rank(pmix_info_t *info, uint32_t rank, uint32_t node, uint32_t place)
{
	pmix_data_array_t *array;
	pmix_info_t *facts;
	uint16_t local = place > UINT16_MAX ? UINT16_MAX : place;
	uint32_t nothing = 0;
	PMIX_DATA_ARRAY_CREATE(array, 7, PMIX_INFO);
	facts = array->array;
	PMIX_INFO_LOAD(&facts[0], PMIX_RANK, &rank, PMIX_PROC_RANK);
	PMIX_INFO_LOAD(&facts[1], PMIX_APPNUM, &nothing, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[2], PMIX_GLOBAL_RANK, &rank, PMIX_PROC_RANK);
	PMIX_INFO_LOAD(&facts[3], PMIX_LOCAL_RANK, &local, PMIX_UINT16);
	PMIX_INFO_LOAD(&facts[4], PMIX_NODE_RANK, &local, PMIX_UINT16);
	PMIX_INFO_LOAD(&facts[5], PMIX_NODEID, &node, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[6], PMIX_HOSTNAME, job.node[node].name, PMIX_STRING);
	PMIX_LOAD_KEY(info->key, PMIX_PROC_DATA);
	info->value.type = PMIX_DATA_ARRAY;
	info->value.data.darray = array;
}

static void register_job(struct done *done)
{
	struct node *own = &job.node[job.here];
	uint32_t one = 1, at = 0;
	char *names = joined(0, job.node, job.nodes), *ranks = joined(1, job.node, job.nodes), *peers = joined(1, own, 1), *nodes, *procs;
	pmix_info_t *facts;
	size_t count = 13 + (size_t)job.size;
	pmix_status_t state = PMIx_generate_regex(names, &nodes);
	if (state == PMIX_SUCCESS)
		state = PMIx_generate_ppn(ranks, &procs);
	if (state != PMIX_SUCCESS)
		fail(1, "the map of nodes: %s", PMIx_Error_string(state));
	PMIX_INFO_CREATE(facts, count);
	PMIX_INFO_LOAD(&facts[at++], PMIX_UNIV_SIZE, &job.size, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_JOB_SIZE, &job.size, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_MAX_PROCS, &job.size, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_JOB_NUM_APPS, &one, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_NUM_NODES, &job.nodes, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_LOCAL_SIZE, &own->count, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_NODE_SIZE, &own->count, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_NODEID, &job.here, PMIX_UINT32);
	PMIX_INFO_LOAD(&facts[at++], PMIX_JOBID, job.name, PMIX_STRING);
	PMIX_INFO_LOAD(&facts[at++], PMIX_NODE_MAP, nodes, PMIX_REGEX);
	PMIX_INFO_LOAD(&facts[at++], PMIX_PROC_MAP, procs, PMIX_REGEX);
	PMIX_INFO_LOAD(&facts[at++], PMIX_LOCAL_PEERS, peers, PMIX_STRING);
	PMIX_INFO_LOAD(&facts[at++], PMIX_LOCALLDR, &own->ranks[0], PMIX_PROC_RANK);
	for (uint32_t node = 0; node < job.nodes; node++)
		for (uint32_t place = 0; place < job.node[node].count; place++)
			describe_rank(&facts[at++], job.node[node].ranks[place], node, place);
	settle("the launch cannot be registered", PMIx_server_register_nspace(job.name, own->count, facts, count, note_done, done), done);
	free(names), free(ranks), free(peers);
}

/* Registers this node's ranks, and sends the variables of each. */
static void register_ranks(struct done *done)
{
	struct node *own = &job.node[job.here];
	for (uint32_t place = 0; place < own->count; place++) {
		char **variables = NULL;
		unsigned char head[4];
		size_t size = 0;
		pmix_proc_t proc;
		PMIX_LOAD_PROCID(&proc, job.name, own->ranks[place]);
		settle("a rank cannot be registered", PMIx_server_register_client(&proc, job.user, job.group, NULL, note_done, done), done);
		pmix_status_t state = PMIx_server_setup_fork(&proc, &variables);
		if (state != PMIX_SUCCESS)
			fail(1, "the variables of a rank: %s", PMIx_Error_string(state));
		for (char **one = variables; *one; one++)
			size += strlen(*one) + 1;
		char *text = need(size, 1), *at = text;
		for (char **one = variables; *one; one++)
			at = stpcpy(at, *one) + 1, free(*one);
		free(variables);
		put32(head, proc.rank);
		tell(VARIABLES, head, sizeof head, text, size);
		free(text);
	}
}

/* Ends this process, and the launch with it, where ranks put so much into it that the memory of the work would go: libpmix sets no bound. */
static void *watch_memory(void *begun)
{
	size_t most = *(size_t *)begun + MOST_MEMORY + (size_t)job.size * RANK_MEMORY;
	for (;;) {
		size_t held = resident_memory();
		if (held > most)
			fail(1, "its ranks have put %zu MiB into it, and the limit is %zu MiB: fence and put less data", held >> 20, most >> 20);
		usleep(LOOK_MICROSECONDS);
	}
	return NULL;
}

static void begin_watch(void)
{
	static size_t begun;
	pthread_t watch;
	begun = resident_memory();
	if (pthread_create(&watch, NULL, watch_memory, &begun))
		fail(1, "there is no thread");
}

static void begin(char *payload, size_t size)
{
	static struct done done = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, PMIX_SUCCESS};
	pmix_info_t *facts;
	if (has_job)
		fail(2, "a second job");
	has_job = 1;
	read_job(payload, size);
	PMIX_INFO_CREATE(facts, 4);
	PMIX_INFO_LOAD(&facts[0], PMIX_SERVER_TMPDIR, job.place, PMIX_STRING);
	PMIX_INFO_LOAD(&facts[1], PMIX_SYSTEM_TMPDIR, job.place, PMIX_STRING);
	PMIX_INFO_LOAD(&facts[2], PMIX_HOSTNAME, job.node[job.here].name, PMIX_STRING);
	PMIX_INFO_LOAD(&facts[3], PMIX_SERVER_NSPACE, "lattice", PMIX_STRING);
	pmix_status_t state = PMIx_server_init(&module, facts, 4);
	if (state != PMIX_SUCCESS)
		fail(1, "libpmix does not begin: %s", PMIx_Error_string(state));
	pmix_status_t lost = PMIX_ERR_LOST_CONNECTION;
	PMIx_Register_event_handler(&lost, 1, NULL, 0, note_lost, NULL, NULL);
	register_job(&done);
	register_ranks(&done);
	begin_watch();
	tell(READY, NULL, 0, NULL, 0);
}

/* The keeper */

static void take_frame(int type, unsigned char *payload, size_t size)
{
	if (type == JOB)
		begin((char *)payload, size);
	else if (!has_job)
		fail(2, "a frame %d before the job", type);
	else if (type == FENCE_DATA || type == MODEX_DATA)
		take_data(payload, size);
	else if (type == MODEX_ASKED)
		answer_keeper(payload, size);
	else
		fail(2, "a frame %d, which no keeper sends", type);
}

/* Reads exactly so many bytes; ends this process with the keeper. */
static void read_all(void *into, size_t size)
{
	char *at = into;
	while (size) {
		ssize_t had = read(KEEPER, at, size);
		if (had < 0 && errno == EINTR)
			continue;
		if (had <= 0)
			_exit(0);
		at += had, size -= had;
	}
}

int main(int argc, char **argv)
{
	unsigned char header[HEADER];
	if (argc == 2 && !strcmp(argv[1], "--check")) {
		puts(PMIx_Get_version());
		return 0;
	}
	if (argc != 1) {
		fprintf(stderr, "%s: the keeper of a launch starts it; --check prints the version of libpmix\n", argv[0]);
		return 64;
	}
	for (;;) {
		read_all(header, HEADER);
		size_t size = get32(header);
		if (size > LONGEST_PAYLOAD)
			fail(2, "a frame of %zu bytes", size);
		unsigned char *payload = need(size + 1, 1);
		read_all(payload, size);
		take_frame(header[4], payload, size);
		free(payload);
	}
}
