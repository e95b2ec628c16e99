/* Puts data into its PMIx server without end, 1 MiB at a time; "refused" where the server takes no more. */
#include <pmix.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIZE = 1 << 20 };

int main(void)
{
    pmix_proc_t me;
    char key[40], *text = malloc(SIZE);
    memset(text, 'x', SIZE);
    if (PMIx_Init(&me, NULL, 0) != PMIX_SUCCESS)
        return 1;
    for (int number = 0; number < 8192; number++) {
        pmix_value_t value;
        value.type = PMIX_BYTE_OBJECT;
        value.data.bo.bytes = text, value.data.bo.size = SIZE;
        sprintf(key, "flood.%d", number);
        if (PMIx_Put(PMIX_REMOTE, key, &value) != PMIX_SUCCESS || PMIx_Commit() != PMIX_SUCCESS) {
            puts("refused");
            return 2;
        }
    }
    return 0;
}
