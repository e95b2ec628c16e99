/* Every call of Slurm's libpmi2; says "rank R of N: right" or what was wrong.
 * every_call          all calls
 * every_call abort R  rank R aborts after the first fence
 * every_call exit R   rank R leaves with 5 there
 * every_call fences N only N fences, each with a put and a get
 */
#include <slurm/pmi2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct MPID_Info;
static int rank, size;

static void check(int right, const char *what)
{
    if (right)
        return;
    printf("rank %d of %d: wrong: %s\n", rank, size, what);
    fflush(stdout);
    _exit(3);
}

int main(int argc, char **argv)
{
    int spawned, appnum, found, length, place, places;
    char job[256], key[64], value[PMI2_MAX_VALLEN], got[PMI2_MAX_VALLEN], left[64], right[64];
    check(!PMI2_Init(&spawned, &size, &rank, &appnum), "init");
    check(PMI2_Initialized(), "initialized");
    check(!spawned && appnum == 0, "spawned or appnum");
    check(!PMI2_Job_GetId(job, sizeof job) && strlen(job) > 8, "job id");
    if (argc > 2 && !strcmp(argv[1], "fences")) {
        for (int n = 0; n < atoi(argv[2]); n++) {
            snprintf(key, sizeof key, "k-%d-%d", n, rank);
            snprintf(value, sizeof value, "v-%d-%d", n, rank);
            check(!PMI2_KVS_Put(key, value), "put");
            check(!PMI2_KVS_Fence(), "fence");
            snprintf(key, sizeof key, "k-%d-%d", n, (rank + 1) % size);
            snprintf(value, sizeof value, "v-%d-%d", n, (rank + 1) % size);
            check(!PMI2_KVS_Get(job, PMI2_ID_NULL, key, got, sizeof got, &length) && !strcmp(got, value), "value after a fence");
        }
        check(!PMI2_Finalize(), "finalize");
        printf("rank %d of %d: right\n", rank, size);
        return 0;
    }
    check(!PMI2_Info_GetJobAttr("PMI_process_mapping", value, sizeof value, &found) && found && !strncmp(value, "(vector,", 8), "mapping");
    check(!PMI2_Info_GetJobAttr("universeSize", value, sizeof value, &found) && found && atoi(value) == size, "universe size");
    check(!PMI2_Info_GetJobAttr("nosuch", value, sizeof value, &found) && !found, "an attribute that is not there");
    snprintf(key, sizeof key, "key-%d", rank);
    memset(value, 'x', sizeof value);
    snprintf(value, sizeof value, "a;b=c d;;%d;", rank);
    check(!PMI2_KVS_Put(key, value), "put");
    if (getenv("MPI_LOCALRANKID") && !atoi(getenv("MPI_LOCALRANKID")))
        check(!PMI2_Info_PutNodeAttr("segment", "/dev/shm/x;0"), "put of a node's attribute");
    check(!PMI2_Info_GetNodeAttr("segment", got, sizeof got, &found, 1) && found && !strcmp(got, "/dev/shm/x;0"), "node's attribute");
    check(!PMI2_Info_GetNodeAttr("never", got, sizeof got, &found, 0) && !found, "a node's attribute that is not there");
    check(!PMI2_KVS_Fence(), "fence");
    if (argc > 2 && atoi(argv[2]) == rank) {
        if (!strcmp(argv[1], "abort"))
            PMI2_Abort(1, "boom; on = purpose");
        _exit(5);
    }
    for (int other = 0; other < size; other++) {
        snprintf(key, sizeof key, "key-%d", other);
        snprintf(value, sizeof value, "a;b=c d;;%d;", other);
        check(!PMI2_KVS_Get(job, other, key, got, sizeof got, &length) && !strcmp(got, value), "value of a rank");
    }
    check(PMI2_KVS_Get(job, PMI2_ID_NULL, "missing", got, sizeof got, &length), "a value that is not there");
    snprintf(value, sizeof value, "v%d", rank);
    check(!PMIX_Ring(value, &place, &places, left, right, sizeof left) && place == rank && places == size, "ring");
    snprintf(value, sizeof value, "v%d", (rank + size - 1) % size);
    check(!strcmp(left, value), "left neighbour");
    snprintf(value, sizeof value, "v%d", (rank + 1) % size);
    check(!strcmp(right, value), "right neighbour");
    if (!rank)
        check(!PMI2_Nameserv_publish("service", NULL, "tcp:1.2.3.4"), "publish");
    check(!PMI2_KVS_Fence(), "fence");
    check(!PMI2_Nameserv_lookup("service", NULL, got, sizeof got) && !strcmp(got, "tcp:1.2.3.4"), "lookup");
    check(!PMI2_KVS_Fence(), "fence");
    if (!rank)
        check(!PMI2_Nameserv_unpublish("service", NULL), "unpublish");
    check(!PMI2_KVS_Fence(), "fence");
    check(PMI2_Nameserv_lookup("service", NULL, got, sizeof got), "lookup of a name that was withdrawn");
    if (!rank) {
        const char *commands[] = {"/bin/true"}, **arguments[] = {NULL};
        int counts[] = {0}, most[] = {1}, sizes[] = {0}, errors[1];
        const struct MPID_Info *infos[] = {NULL};
        check(PMI2_Job_Spawn(1, commands, counts, arguments, most, sizes, infos, 0, NULL, got, sizeof got, errors), "spawn is refused");
    }
    check(!PMI2_KVS_Fence(), "fence");
    check(!PMI2_Finalize(), "finalize");
    printf("rank %d of %d: right\n", rank, size);
    return 0;
}
