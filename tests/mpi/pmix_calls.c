/* Calls PMIx directly, as no MPI need: data of ranks that have not entered a fence, a large value, fences of some ranks.
 * pmix_calls says "rank R of N: right"
 */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGE = 300000 };

static pmix_proc_t me;

static void check(int right, const char *what)
{
    if (!right) {
        printf("rank %u: wrong: %s\n", me.rank, what);
        exit(1);
    }
}

static void put(const char *key, char *text)
{
    pmix_value_t value;
    value.type = PMIX_STRING;
    value.data.string = text;
    check(PMIx_Put(PMIX_GLOBAL, key, &value) == PMIX_SUCCESS, "put");
    check(PMIx_Commit() == PMIX_SUCCESS, "commit");
}

static void get(uint32_t rank, const char *key, const char *wanted)
{
    pmix_proc_t proc;
    pmix_value_t *value;
    PMIX_LOAD_PROCID(&proc, me.nspace, rank);
    check(PMIx_Get(&proc, key, NULL, 0, &value) == PMIX_SUCCESS, "get");
    check(value->type == PMIX_STRING && !strcmp(value->data.string, wanted), "the value");
    PMIX_VALUE_RELEASE(value);
}

int main(void)
{
    char text[40], wanted[40], *large = malloc(LARGE + 1);
    pmix_value_t *value;
    pmix_proc_t everybody, pair[2];
    pmix_info_t info;
    bool collect = true;
    check(PMIx_Init(&me, NULL, 0) == PMIX_SUCCESS, "init");
    PMIX_LOAD_PROCID(&everybody, me.nspace, PMIX_RANK_WILDCARD);
    check(PMIx_Get(&everybody, PMIX_JOB_SIZE, NULL, 0, &value) == PMIX_SUCCESS, "size");
    uint32_t size = value->data.uint32, next = (me.rank + 1) % size;
    PMIX_VALUE_RELEASE(value);
    sprintf(text, "first of %u", me.rank);
    put("first", text);
    sprintf(wanted, "first of %u", next);
    get(next, "first", wanted);
    memset(large, 'a' + me.rank % 26, LARGE), large[LARGE] = 0;
    put("large", large);
    PMIX_INFO_LOAD(&info, PMIX_COLLECT_DATA, &collect, PMIX_BOOL);
    check(PMIx_Fence(&everybody, 1, &info, 1) == PMIX_SUCCESS, "fence");
    memset(large, 'a' + next % 26, LARGE);
    get(next, "large", large);
    for (int round = 0; round < 50; round++)
        check(PMIx_Fence(&everybody, 1, NULL, 0) == PMIX_SUCCESS, "empty fence");
    if (getenv("PAIR") && me.rank < 2) {
        PMIX_LOAD_PROCID(&pair[0], me.nspace, 0);
        PMIX_LOAD_PROCID(&pair[1], me.nspace, 1);
        check((PMIx_Fence(pair, 2, NULL, 0) == PMIX_SUCCESS) == !strcmp(getenv("PAIR"), "served"), "fence of two");
    }
    check(PMIx_Fence(&everybody, 1, NULL, 0) == PMIX_SUCCESS, "last fence");
    check(PMIx_Finalize(NULL, 0) == PMIX_SUCCESS, "finalize");
    printf("rank %u of %u: right\n", me.rank, size);
    return 0;
}
